"""A timeline as a Chrome trace, which ui.perfetto.dev and chrome://tracing open."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from autopipe.documents.arguments import typed
from autopipe.documents.timeline import Lane, RankTimeline, Span, Timeline

_MESSAGE = re.compile(r"\b([ag])([0-9]+)>([0-9]+)\.([0-9]+)$")


@typed
def chrome_trace(timeline: Timeline) -> bytes:
    """Return ``timeline`` in the Trace Event Format: a process for each rank, a thread for each lane.

    An arrow leads from the action that makes a message to the one that reads it; counters beside each rank show
    its micro-batches in flight, and its memory where the timeline knows it. Times are microseconds there, with
    three decimals, so that no nanosecond is lost.

    References
    ----------
    "Trace Event Format": complete events (``X``), metadata (``M``), flows (``s``, ``f``) and counters (``C``).
    """
    events: list[dict[str, Any]] = []
    for rank in timeline.ranks:
        name = f"rank {rank.rank} ({timeline.source})"
        events.append({"ph": "M", "name": "process_name", "pid": rank.rank, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank.rank, "args": {"sort_index": rank.rank}})
        for number, lane in enumerate(Lane):
            spans = [span for span in rank.spans if span.lane is lane]
            if spans:
                args = {"name": lane.value}
                events.append({"ph": "M", "name": "thread_name", "pid": rank.rank, "tid": number, "args": args})
            events += (
                {
                    "ph": "X",
                    "name": span.label,
                    "cat": lane.value,
                    "pid": rank.rank,
                    "tid": number,
                    "ts": span.start_ns / 1000,
                    "dur": (span.end_ns - span.start_ns) / 1000,
                }
                for span in spans
            )
    events += _arrows(timeline)
    for rank in timeline.ranks:
        events += _counters(rank)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _arrows(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield both ends of an arrow for every message between ranks, on the actions that make and read it."""
    places = {
        span.label: (rank.rank, span) for rank in timeline.ranks for span in rank.spans if span.lane is Lane.COMPUTE
    }
    messages = {
        match[0]: match
        for rank in timeline.ranks
        for span in rank.spans
        if (match := _MESSAGE.search(span.label)) is not None
    }
    for number, (name, match) in enumerate(messages.items()):
        ops = ("F",) if match[1] == "a" else ("B", "I")
        maker, reader = (_first(places, ops, f"{stage}.{match[4]}") for stage in (match[2], match[3]))
        if maker is None or reader is None:
            continue
        (source, made), (target, read) = maker, reader
        flow = {"name": name, "cat": "message", "id": number, "tid": list(Lane).index(Lane.COMPUTE)}
        yield {"ph": "s", "pid": source, "ts": (made.end_ns - 1) / 1000, **flow}
        yield {"ph": "f", "bp": "e", "pid": target, "ts": read.start_ns / 1000, **flow}


def _first(places: dict[str, tuple[int, Span]], ops: tuple[str, ...], rest: str) -> tuple[int, Span] | None:
    return next((places[op + rest] for op in ops if op + rest in places), None)


def _counters(rank: RankTimeline) -> Iterator[dict[str, Any]]:
    """Yield the micro-batches in flight after each action, and the bytes held during it."""
    in_flight = 0
    for span in rank.spans:
        if span.lane is not Lane.COMPUTE:
            continue
        in_flight += {"F": 1, "B": -1, "W": -1}.get(span.label[0], 0)
        yield _counter(rank.rank, span.end_ns, "in flight", "micro-batches", in_flight)
        if span.held_bytes is not None:
            yield _counter(rank.rank, span.start_ns, "memory", "bytes", span.held_bytes)


def _counter(rank: int, at_ns: int, name: str, unit: str, value: int) -> dict[str, Any]:
    return {"ph": "C", "pid": rank, "name": name, "ts": at_ns / 1000, "args": {unit: value}}
