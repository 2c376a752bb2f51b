"""Which nodes of a stage recompute, so that it fits in memory and loses the least time: a knapsack, exactly."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopipe.planner.dag import Booleans, Dag, Floats

EXACT = 1e-12


@dataclass(frozen=True, kw_only=True)
class Choices:
    """For stages with one number of micro-batches in flight: what each node needs, and what the other way costs.

    Attributes
    ----------
    limit_bytes : float
    base_bytes : Floats
        Shape (nodes,): memory in the faster way.
    saved_bytes, extra_s : Floats
        Shape (nodes,): what the other way saves and costs, 0 where it saves nothing.
    """

    limit_bytes: float
    base_bytes: Floats
    saved_bytes: Floats
    extra_s: Floats

    @property
    def any(self) -> bool:
        """Whether any node has a second way that saves memory."""
        return bool((self.saved_bytes > 0).any())


def recompute_is_faster(dag: Dag) -> Booleans:
    """Return, by node, whether the recomputing variant takes less time than the plain one."""
    return dag.recomputed.seconds < dag.plain.seconds


def faster_seconds(dag: Dag) -> Floats:
    """Return, by node, the time of its faster way."""
    return np.minimum(dag.plain.seconds, dag.recomputed.seconds)


def choices(dag: Dag, in_flight: int) -> Choices | None:
    """Return the choices of stages that hold ``in_flight`` micro-batches, or None if memory is not limited."""
    if dag.memory_bytes is None:
        return None
    plain = dag.plain.fixed_bytes + in_flight * dag.plain.in_flight_bytes
    recomputed = dag.recomputed.fixed_bytes + in_flight * dag.recomputed.in_flight_bytes
    swapped = recompute_is_faster(dag)
    base, other = np.where(swapped, recomputed, plain), np.where(swapped, plain, recomputed)
    saved = np.maximum(base - other, 0.0)
    extra = np.where(saved > 0, np.abs(dag.recomputed.seconds - dag.plain.seconds), 0.0)
    return Choices(limit_bytes=dag.memory_bytes, base_bytes=base, saved_bytes=saved, extra_s=extra)


def cheapest(
    saved: Floats, extra: Floats, needed: float, most: float = float("inf")
) -> tuple[float, npt.NDArray[np.int64]] | None:
    """Return the least sum of ``extra`` of items whose ``saved`` add up to ``needed``, and these items.

    None if all items together save less, or surely only at more than ``most``.

    Notes
    -----
    A knapsack. The relaxed solution takes items in the order of their ratios; items whose removal or addition
    would by itself cost more than the rounded solution has above the relaxed one are fixed, and a dynamic
    programme over undominated (saved, extra) pairs decides the rest (Pisinger and Toth, "Knapsack problems",
    1998).
    """
    if needed <= 0:
        return 0.0, np.empty(0, dtype=np.int64)
    items = np.flatnonzero(saved > 0)
    items = items[np.argsort(extra[items] / saved[items], kind="stable")]
    total_saved, total_extra = np.cumsum(saved[items]), np.cumsum(extra[items])
    if not len(items) or total_saved[-1] < needed:
        return None
    last = int(np.searchsorted(total_saved, needed))
    rate = float(extra[items[last]] / saved[items[last]])
    relaxed = float(total_extra[last] - rate * (total_saved[last] - needed))
    if relaxed > most:
        return None
    taken = _trimmed(items[: last + 1], saved, extra, float(total_saved[last]) - needed)
    best = float(extra[taken].sum())
    if best - relaxed <= EXACT * max(best, 1e-300):
        return best, taken
    regret = np.abs(extra[items] - rate * saved[items])
    is_free = relaxed + regret < best
    fixed = items[: last + 1][~is_free[: last + 1]]
    free = items[is_free]
    found = _undominated(saved[free], extra[free], needed - float(saved[fixed].sum()), best - float(extra[fixed].sum()))
    if found is None:
        return best, taken
    chosen = np.concatenate([fixed, free[found]])
    return float(extra[chosen].sum()), chosen


def _trimmed(items: npt.NDArray[np.int64], saved: Floats, extra: Floats, spare: float) -> npt.NDArray[np.int64]:
    """Return ``items`` without those, the dearest first, that the spare saving makes needless."""
    kept = list(items)
    for item in sorted(items, key=lambda item: -extra[item]):
        if saved[item] <= spare:
            spare -= float(saved[item])
            kept.remove(item)
    return np.array(kept, dtype=np.int64)


def _undominated(saved: Floats, extra: Floats, needed: float, most: float) -> npt.NDArray[np.int64] | None:
    """Return the items of the cheapest choice under ``most``, None if there is none; items ascend in ratio."""
    total_saved = np.concatenate(([0.0], np.cumsum(saved)))
    total_extra = np.concatenate(([0.0], np.cumsum(extra)))
    have, spent = np.zeros(1), np.zeros(1)
    steps: list[tuple[npt.NDArray[np.int64], Booleans]] = []
    best: tuple[float, int, int] | None = None
    for item in range(len(saved)):
        have = np.concatenate([have, have + saved[item]])
        spent = np.concatenate([spent, spent + extra[item]])
        order = np.lexsort((spent, -have))
        lowest = np.minimum.accumulate(spent[order])
        order = order[np.concatenate(([True], spent[order][1:] < lowest[:-1]))]
        half = len(have) // 2
        parents, took = np.where(order >= half, order - half, order), order >= half
        have, spent = have[order], spent[order]
        enough = have >= needed
        if enough.any():
            reached = int(np.argmin(np.where(enough, spent, np.inf)))
            if spent[reached] < most:
                most, best = float(spent[reached]), (float(spent[reached]), item, reached)
        bound = spent + _relaxed_rest(total_saved, total_extra, item + 1, needed - have)
        keep = ~enough & (bound < most)
        if best is not None and best[1] == item:
            keep[best[2]] = True
            best = (best[0], item, int(keep[: best[2]].sum()))
        steps.append((parents[keep], took[keep]))
        have, spent = have[keep], spent[keep]
        if not len(have):
            break
    if best is None:
        return None
    _, item, state = best
    chosen = []
    for step in range(item, -1, -1):
        parents, took = steps[step]
        if took[state]:
            chosen.append(step)
        state = int(parents[state])
    return np.array(chosen, dtype=np.int64)


def _relaxed_rest(total_saved: Floats, total_extra: Floats, begin: int, needed: Floats) -> Floats:
    """Return the relaxed cost of saving ``needed`` with items from ``begin`` on."""
    target = np.maximum(needed, 0.0) + total_saved[begin]
    bound: Floats = np.interp(target, total_saved[begin:], total_extra[begin:]) - total_extra[begin]
    return np.where(target > total_saved[-1], np.inf, bound)
