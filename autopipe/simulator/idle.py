"""Idle time by cause: what a rank waited for while it did not compute."""

from collections.abc import Iterator

import msgspec

from autopipe.documents.timeline import Lane, RankTimeline, Span, Timeline
from autopipe.simulator.metrics import busy_ns


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank's time in the step goes; the fields add up to the step.

    Attributes
    ----------
    busy_ns : int
        In actions and in the optimizer.
    warm_up_ns, cool_down_ns : int
        Before its first action, and after its last one until the last rank's.
    link_ns : int
        Waiting for a message that was on its way already.
    sending_ns : int
        Starting messages, where that keeps the rank from computing.
    imbalance_ns : int
        Waiting for what was not yet computed, as far as the rank has less to compute than the busiest one.
    dependency_ns : int
        The rest of that waiting: the order of the schedule.
    overhead_ns : int
        Between spans: what the executor does beside them.
    tail_ns : int
        After the last action of all ranks: gradients are summed, other ranks update parameters.
    """

    rank: int
    busy_ns: int
    warm_up_ns: int
    cool_down_ns: int
    link_ns: int
    sending_ns: int
    imbalance_ns: int
    dependency_ns: int
    overhead_ns: int
    tail_ns: int


def idle_times(timeline: Timeline) -> tuple[Idle, ...]:
    """Return, by rank, where the time of the step goes, simulated or measured alike.

    A message counts as on its way from the moment when its sender begins to send it.
    """
    ends = [max((span.end_ns for span in _computed(rank)), default=0) for rank in timeline.ranks]
    makespan = max(ends, default=0)
    departed = departures(timeline)
    most = max((_computing(rank) for rank in timeline.ranks), default=0)
    return tuple(
        _idle(rank, end, makespan, timeline.step_ns, most, departed)
        for rank, end in zip(timeline.ranks, ends, strict=True)
    )


def _idle(rank: RankTimeline, end: int, makespan: int, step_ns: int, most_ns: int, departures: dict[str, int]) -> Idle:
    start = min((span.start_ns for span in _computed(rank)), default=0)
    link = waiting = sending = 0
    for span in rank.spans:
        begin, finish = max(span.start_ns, start), min(span.end_ns, end)
        if begin >= finish:
            continue
        if span.lane is Lane.WAIT:
            departed = min(max(departures.get(span.label.partition(" ")[2], finish), begin), finish)
            link += finish - departed
            waiting += departed - begin
        elif span.lane is Lane.SEND and span.label.startswith("send "):
            sending += finish - begin
    computing, busy = _computing(rank), busy_ns(rank)
    tail = step_ns - makespan - (busy - computing)
    imbalance = min(waiting, most_ns - computing)
    return Idle(
        rank=rank.rank,
        busy_ns=busy,
        warm_up_ns=start,
        cool_down_ns=makespan - end,
        link_ns=link,
        sending_ns=sending,
        imbalance_ns=imbalance,
        dependency_ns=waiting - imbalance,
        overhead_ns=end - start - computing - link - waiting - sending,
        tail_ns=tail,
    )


def departures(timeline: Timeline) -> dict[str, int]:
    """Return when each message began to leave: a simulated transfer's begin, or a measured send's."""
    found: dict[str, int] = {}
    for rank in timeline.ranks:
        for span in rank.spans:
            if span.lane is Lane.SEND:
                message = span.label.removeprefix("send ")
                found[message] = min(span.start_ns, found.get(message, span.start_ns))
    return found


def _computed(rank: RankTimeline) -> Iterator[Span]:
    return (span for span in rank.spans if span.lane is Lane.COMPUTE)


def _computing(rank: RankTimeline) -> int:
    return sum(span.end_ns - span.start_ns for span in _computed(rank))
