"""A simulated timeline beside a measured one of the same schedule: step, idle time, every stage's actions."""

import statistics
from collections import defaultdict

from autopipe.documents.timeline import Lane, Timeline
from autopipe.errors import MismatchError
from autopipe.reporting.comparison import Pair
from autopipe.schedules.action import Action
from autopipe.simulator.metrics import busy_ns, makespan_ns


def compare_timelines(simulated: Timeline, measured: Timeline) -> tuple[Pair, ...]:
    """Return step, idle time and the mean duration of each stage's F, B, I and W, predicted and measured.

    The step is from the first action's start to the last one's end; idle is what is left of it on the mean rank.

    Raises
    ------
    MismatchError
        If the two do not compute the same actions.
    """
    predicted, found = _durations(simulated), _durations(measured)
    if {key: len(row) for key, row in predicted.items()} != {key: len(row) for key, row in found.items()}:
        raise MismatchError(
            f"the simulated timeline has {sum(map(len, predicted.values()))} actions of {len(predicted)} kinds and the "
            f"measured one {sum(map(len, found.values()))} of {len(found)}: simulate the plan that was run."
        )
    actions = (
        Pair(f"stage {key[0]} {key[1]}", _mean(predicted[key]), _mean(found[key]), "ns") for key in sorted(predicted)
    )
    return (
        Pair("first to last action", makespan_ns(simulated), makespan_ns(measured), "ns"),
        Pair("idle, mean rank", _idle(simulated), _idle(measured), "ns"),
        *actions,
    )


def _durations(timeline: Timeline) -> dict[tuple[int, str], list[int]]:
    rows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rank in timeline.ranks:
        for span in rank.spans:
            if span.lane is Lane.COMPUTE:
                action = Action.parse(span.label)
                rows[action.stage, str(action.op)].append(span.end_ns - span.start_ns)
    return rows


def _mean(durations: list[int]) -> int:
    return round(statistics.mean(durations))


def _idle(timeline: Timeline) -> int:
    """Return the time from first to last action in which the mean rank computes nothing."""
    computing = (
        busy_ns(rank) - sum(span.end_ns - span.start_ns for span in rank.spans if span.lane is Lane.OPTIMIZER)
        for rank in timeline.ranks
    )
    return makespan_ns(timeline) - round(statistics.mean(computing))
