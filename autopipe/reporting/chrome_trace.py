"""A timeline as a Chrome trace, which ui.perfetto.dev and chrome://tracing open."""

from typing import Any

import msgspec

from autopipe.documents.timeline import Lane, Timeline


def chrome_trace(timeline: Timeline) -> bytes:
    """Return ``timeline`` in the Trace Event Format: a process for each rank, a thread for each lane.

    Times are microseconds there, with three decimals, so that no nanosecond is lost.

    References
    ----------
    "Trace Event Format", complete events (``X``) and metadata events (``M``).
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
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})
