"""The critical path of a step: the chain of actions, transfers and delays that made it as long as it was."""

import re
from bisect import bisect_left
from collections import Counter
from enum import StrEnum

import msgspec

from autopipe.documents.timeline import Lane, Span, Timeline

CALL_NS = 50_000


class Link(StrEnum):
    """What a part of the path was spent on."""

    COMPUTE = "compute"
    TRANSFER = "transfer"
    OVERHEAD = "overhead"


_KINDS = {Lane.COMPUTE: Link.COMPUTE, Lane.WAIT: Link.TRANSFER}


_MESSAGE = re.compile(r"(([ag])([0-9]+)>[0-9]+\.([0-9]+))$")
_MAKERS = {"a": ("F",), "g": ("B", "I")}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the path: on ``rank`` (a transfer: the receiving one), from ``start_ns`` to ``end_ns``."""

    rank: int
    kind: Link
    label: str
    start_ns: int
    end_ns: int


def critical_path(timeline: Timeline) -> tuple[Part, ...]:
    """Return the parts of the path in order of time; they reach from 0 to the end of the last action without a gap.

    From the last action backward: an action that began as soon as its rank was free follows what the rank did
    before; one that waited for a message follows the message, and that its sender. In a measured timeline a
    wait under 50 us is the cost of the call, not a message that came late.

    Notes
    -----
    O(n log n) for n spans.
    """
    rows = {rank.rank: sorted((s for s in rank.spans if _counts(s)), key=lambda s: s.end_ns) for rank in timeline.ranks}
    ends = {rank: [span.end_ns for span in row] for rank, row in rows.items()}
    senders = _senders(timeline)
    noticeable = 0 if timeline.source == "simulated" else CALL_NS
    last = max(
        ((span.end_ns, rank) for rank, row in rows.items() for span in row if span.lane is Lane.COMPUTE), default=None
    )
    if last is None:
        return ()
    now, rank = last
    parts: list[Part] = []

    def add(kind: Link, label: str, start: int) -> None:
        if now > start:
            parts.append(Part(rank=rank, kind=kind, label=label, start_ns=start, end_ns=now))

    while now > 0:
        at = bisect_left(ends[rank], now + 1) - 1
        if at < 0:
            add(Link.OVERHEAD, "start", 0)
            break
        span = rows[rank][at]
        if span.end_ns < now:
            add(Link.OVERHEAD, "executor", span.end_ns)
            now = span.end_ns
        message = span.label.partition(" ")[2]
        sender = senders.get(message) if span.lane is Lane.WAIT and now - span.start_ns >= noticeable else None
        if sender is not None and sender[0] != rank and sender[1] <= now:
            add(Link.TRANSFER, message, sender[1])
            rank, now = sender
        else:
            add(_KINDS.get(span.lane, Link.OVERHEAD), span.label, span.start_ns)
            now = span.start_ns
    return tuple(reversed(parts))


def shares(path: tuple[Part, ...]) -> dict[Link, int]:
    """Return the nanoseconds of the path by kind."""
    total: Counter[Link] = Counter()
    for part in path:
        total[part.kind] += part.end_ns - part.start_ns
    return {kind: total[kind] for kind in Link}


def _counts(span: Span) -> bool:
    """Tell whether a span holds its rank: a simulated transfer does not, and an empty one does not matter."""
    held = span.lane in (Lane.COMPUTE, Lane.WAIT) or span.label.startswith(("send ", "post ", "take "))
    return held and span.end_ns > span.start_ns


def _senders(timeline: Timeline) -> dict[str, tuple[int, int]]:
    """Return the rank that sent each message, and when it began to; over a free link, when it was made."""
    found: dict[str, tuple[int, int]] = {}
    for rank in timeline.ranks:
        for span in rank.spans:
            if span.lane is Lane.SEND:
                message = span.label.removeprefix("send ")
                if message not in found or span.start_ns < found[message][1]:
                    found[message] = rank.rank, span.start_ns
    for message, maker in _made(timeline).items():
        found.setdefault(message, maker)
    return found


def _made(timeline: Timeline) -> dict[str, tuple[int, int]]:
    """Return the rank that made each message that is waited for, and when."""
    actions = {
        span.label: (rank.rank, span.end_ns)
        for rank in timeline.ranks
        for span in rank.spans
        if span.lane is Lane.COMPUTE
    }
    found: dict[str, tuple[int, int]] = {}
    for span in (span for rank in timeline.ranks for span in rank.spans if span.lane is Lane.WAIT):
        match = _MESSAGE.search(span.label)
        for op in () if match is None else _MAKERS[match[2]]:
            if match is not None and (maker := actions.get(f"{op}{match[3]}.{match[4]}")) is not None:
                found[match[1]] = maker
    return found
