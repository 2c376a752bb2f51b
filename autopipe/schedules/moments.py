"""The moments at which a rank holds most, stage by stage: what its memory must have room for."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from autopipe.schedules.action import Op, Schedule
from autopipe.schedules.comms import chain, edges_by_stage
from autopipe.schedules.named import make
from autopipe.schedules.residency import Holding, StageHolding, holdings, unanswered

FIGURES = 5


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What each stage of a rank holds at one moment; ``in_hand`` is the stage that computes, a forward or not."""

    stages: tuple[int, ...]
    held: tuple[StageHolding, ...]
    in_hand: int
    forward: bool


def rank_moments(schedule: Schedule) -> tuple[tuple[Moment, ...], ...]:
    """Return, per rank of a schedule without skips, its largest moments.

    Of two moments with the same stage in hand of which one has no less of anything, and a backward where the other
    has one, only that one is kept. On a rank with several stages, buffers and messages are counted at their most
    over all moments, which leaves far fewer moments and books at most a few buffers too many.
    """
    near = edges_by_stage(chain(schedule.stages), schedule.stages)
    rows = []
    for rank in range(schedule.ranks):
        own = tuple(stage for stage, home in enumerate(schedule.stage_ranks) if home == rank)
        found = {_figures(holding, own) for holding in holdings(schedule, near, rank)}
        if len(own) > 1:
            most = tuple(map(max, zip(*(flat for _, _, flat in found), strict=True)))
            found = {(stage, forward, _with_most(flat, most)) for stage, forward, flat in found}
        far = unanswered(schedule, rank)
        rows.append(tuple(_moment(own, far, *one) for one in sorted(_largest(found))))
    return tuple(rows)


def named_moments(
    name: str, *, ranks: int, micro_batches: int, virtual: int = 1, depth: int = 0
) -> tuple[tuple[Moment, ...], ...]:
    """Return `rank_moments` of a named schedule, without walking through all its micro-batches.

    From some 4 * ranks micro-batches on, what a rank holds repeats itself: GPipe's grows by one in flight for
    each further micro-batch, that of the others stays the same. Looped BFS is walked to its end.
    """
    repeats = ranks * (4 if virtual > 1 or name.startswith("zb") else 2) + depth + 8
    repeats += (micro_batches - repeats) % ranks  # interleaved ends otherwise with a round that is not full
    walked = micro_batches if name == "bfs" else min(micro_batches, repeats)
    rows = _walked_moments(name, ranks, walked, virtual, depth)
    grows = micro_batches - walked if name == "gpipe" else 0
    if not grows:
        return rows
    return tuple(tuple(_with_more(moment, grows) for moment in row) for row in rows)


@lru_cache(maxsize=256)
def _walked_moments(name: str, ranks: int, walked: int, virtual: int, depth: int) -> tuple[tuple[Moment, ...], ...]:
    return rank_moments(make(name, stages=ranks, micro_batches=walked, virtual=virtual, depth=depth))


def _with_more(moment: Moment, more: int) -> Moment:
    held = tuple(msgspec.structs.replace(one, in_flight=one.in_flight + more) for one in moment.held)
    return msgspec.structs.replace(moment, held=held)


Figures = tuple[int, bool, tuple[int, ...]]


def _figures(holding: Holding, own: tuple[int, ...]) -> Figures:
    flat: list[int] = []
    for stage in own:
        flat += (
            holding.in_flight.get(stage, 0),
            holding.posted.get((stage - 1, stage, False), 0),
            holding.posted.get((stage + 1, stage, True), 0),
            holding.unsent.get((stage, stage + 1, False), 0),
            holding.unsent.get((stage, stage - 1, True), 0),
        )
    return holding.action.stage, holding.action.op is Op.FORWARD, tuple(flat)


def _with_most(flat: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
    """Return the figures with everything but what is in flight at its most."""
    return tuple(own if at % FIGURES == 0 else top for at, (own, top) in enumerate(zip(flat, most, strict=True)))


def _largest(found: set[Figures]) -> Iterator[Figures]:
    kept: list[Figures] = []
    for stage, forward, flat in sorted(found, key=lambda one: (-sum(one[2]), one)):
        others = (more for other, ahead, more in kept if other == stage and ahead <= forward)
        if not any(all(map(int.__le__, flat, more)) for more in others):
            kept.append((stage, forward, flat))
    yield from kept


def _moment(own: tuple[int, ...], far: Mapping[int, int], in_hand: int, forward: bool, flat: tuple[int, ...]) -> Moment:
    held = tuple(
        StageHolding(
            in_flight=flat[at],
            inputs=flat[at + 1],
            gradients=flat[at + 2],
            outputs=flat[at + 3],
            input_gradients=flat[at + 4],
            unanswered=far.get(stage, 0),
        )
        for stage, at in zip(own, range(0, len(flat), FIGURES), strict=True)
    )
    return Moment(stages=own, held=held, in_hand=in_hand, forward=forward)
