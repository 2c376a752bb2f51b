"""A schedule is drawn as text: rank 0 on top, time to the right."""

from collections.abc import Iterable, Mapping

from autopipe.errors import ScheduleError
from autopipe.schedules.action import Action, Op, Schedule
from autopipe.schedules.comms import Edge, chain, edges_by_stage, reads, writes

_NEARBY_ACTIONS = 6
_NEARBY_RANKS = 8


def draw(schedule: Schedule, *, edges: Iterable[Edge] | None = None, cells: Mapping[Op, int] | None = None) -> str:
    """Return the grid of ``schedule``, every action as early as its inputs and its rank allow, links free.

    An action reads ``F3`` (micro-batch 3) where every rank has one stage and ``F1.3`` (stage 1) otherwise;
    one that lasts several cells is drawn out with dashes.

    Parameters
    ----------
    edges : iterable of Edge, optional
        What stages read from each other; a chain if not given.
    cells : mapping of Op to int, optional
        Cells that an action of each kind lasts, 1 where not given.

    Raises
    ------
    ScheduleError
        If some action never gets its inputs.
    """
    lasts = {op: 1 if cells is None else cells.get(op, 1) for op in Op}
    starts = _earliest_starts(schedule, chain(schedule.stages) if edges is None else tuple(edges), lasts)
    alone = schedule.stages == schedule.ranks
    width = 1 + max((len(_label(action, alone)) for row in schedule.actions for action in row), default=0)
    lines = []
    for actions, begins in zip(schedule.actions, starts, strict=True):
        line = ""
        for action, begin in zip(actions, begins, strict=True):
            line = line.ljust(begin * width)
            line += _label(action, alone).ljust(lasts[action.op] * width - 1, "-" if lasts[action.op] > 1 else " ")
        lines.append(line)
    return _with_ranks(enumerate(lines))


def mark(schedule: Schedule, faults: Mapping[int, int]) -> str:
    """Return the actions near a fault, row by row without time, each faulty one between ``>`` and ``<``.

    Parameters
    ----------
    faults : mapping of int to int
        Rank to the position of its faulty action; a position past the last action marks the row's end.
    """
    first = max(0, min(faults, default=0) - _NEARBY_RANKS // 2)
    rows = []
    for rank in range(first, min(schedule.ranks, first + _NEARBY_RANKS)):
        actions = schedule.actions[rank]
        fault = faults.get(rank)
        centre = min(faults.values(), default=0) if fault is None else fault
        begin, end = max(0, centre - _NEARBY_ACTIONS), min(len(actions), centre + _NEARBY_ACTIONS + 1)
        words = [f">{actions[i]}<" if i == fault else str(actions[i]) for i in range(begin, end)]
        if fault is not None and fault >= len(actions):
            words.append("> <")
        rows.append((rank, ("... " if begin else "") + " ".join(words) + (" ..." if end < len(actions) else "")))
    return _with_ranks(rows)


def _label(action: Action, alone: bool) -> str:
    return f"{action.op}{action.micro_batch}" if alone else str(action)


def _with_ranks(rows: Iterable[tuple[int, str]]) -> str:
    rows = tuple(rows)
    digits = max((len(str(rank)) for rank, _ in rows), default=1)
    return "".join(f"rank {rank:>{digits}} | {line}".rstrip() + "\n" for rank, line in rows)


def _earliest_starts(
    schedule: Schedule, edges: tuple[Edge, ...], lasts: Mapping[Op, int]
) -> tuple[tuple[int, ...], ...]:
    """Return, per rank, the cell in which each action starts."""
    near = edges_by_stage(edges, schedule.stages)
    starts: list[list[int]] = [[] for _ in schedule.actions]
    clock = [0] * schedule.ranks
    made: dict[object, int] = {}
    ready = list(range(schedule.ranks))
    waiting: dict[object, list[int]] = {}
    while ready:
        rank = ready.pop()
        for action in schedule.actions[rank][len(starts[rank]) :]:
            needed = reads(action, near[action.stage])
            missing = next((message for message in needed if message not in made), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            begin = max([clock[rank], *(made[message] for message in needed)])
            starts[rank].append(begin)
            clock[rank] = begin + lasts[action.op]
            for message in writes(action, near[action.stage]):
                made[message] = clock[rank]
                ready += waiting.pop(message, ())
    stuck = {rank: len(row) for rank, row in enumerate(starts) if len(row) < len(schedule.actions[rank])}
    if stuck:
        raise ScheduleError(
            "no grid can be drawn: these actions never get their inputs.\n"
            + mark(schedule, stuck)
            + "Put the actions that feed them before them."
        )
    return tuple(tuple(row) for row in starts)
