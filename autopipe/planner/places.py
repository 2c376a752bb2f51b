"""Where boundaries may be: legal cuts, wishes, and what is left when both ends must be reached."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autopipe.costs.stages import Intervals
from autopipe.planner.wishes import Wishes

Mask = npt.NDArray[np.bool_]
Windows = tuple[tuple[int, int], ...]


def legal_intervals(
    intervals: Intervals, stages: int, wishes: Wishes, together: Sequence[tuple[int, int]]
) -> tuple[Mask, ...]:
    """Return, per stage, the intervals between legal cuts that leave every other stage at least one layer."""
    layers = intervals.times.layers
    cut = np.ones(layers + 1, dtype=bool)
    forbidden = {*intervals.sized.profile.forbidden_cuts, *wishes.forbidden_cuts}
    forbidden |= {cut for first, last in together for cut in range(first + 1, last + 1)}
    cut[[position for position in forbidden if 0 < position < layers]] = False
    places = np.cumsum(cut)
    before, after = places - 1, places[-1] - places
    masks = []
    for stage in range(stages):
        begins = cut & ((before == 0) if stage == 0 else (before >= stage))
        ends = cut & ((after == 0) if stage == stages - 1 else (after >= stages - 1 - stage))
        mask = np.triu(begins[:, None] & ends[None, :], k=1)
        for layer, wished in wishes.pins:
            if wished % stages == stage and -stages <= wished < stages:
                mask[layer + 1 :] = False
                mask[:, : layer + 1] = False
            else:
                mask[: layer + 1, layer + 1 :] = False
        masks.append(mask)
    return tuple(masks)


def windows_of(allowed: Sequence[Mask], layers: int) -> Windows:
    """Return where each boundary can be, by what can be reached from both ends; (0, -1) for one without a place."""
    reached: list[npt.NDArray[np.bool_]] = [np.arange(layers + 1) == 0]
    for mask in allowed:
        reached.append(np.any(mask[reached[-1]], axis=0))
    onward: npt.NDArray[np.bool_] = np.arange(layers + 1) == layers
    windows = []
    for stage in range(len(allowed), -1, -1):
        if stage < len(allowed):
            onward = np.any(allowed[stage][:, onward], axis=1)
        places = np.flatnonzero(reached[stage] & onward)
        windows.append((int(places[0]), int(places[-1])) if len(places) else (0, -1))
    return tuple(reversed(windows))


def pairs_together(wishes: Wishes) -> tuple[tuple[int, int], ...]:
    """Return the pairs of layers that are to be on one rank."""
    return tuple(sorted({pair for group in wishes.together for pair in pairwise(group)}))
