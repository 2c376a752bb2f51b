"""The Chrome trace: every span once, in microseconds, named for people."""

import json

from autopipe.reporting.chrome_trace import chrome_trace
from tests.reporting import samples


def test_every_span_is_one_complete_event_in_microseconds() -> None:
    timeline = samples.timeline(2, 2)
    events = [event for event in json.loads(chrome_trace(timeline))["traceEvents"] if event["ph"] == "X"]
    spans = [(rank.rank, span) for rank in timeline.ranks for span in rank.spans]
    assert [(e["pid"], e["name"], e["ts"] * 1000, e["dur"] * 1000) for e in events] == [
        (rank, span.label, span.start_ns, span.end_ns - span.start_ns) for rank, span in spans
    ]


def test_ranks_and_lanes_have_names() -> None:
    events = json.loads(chrome_trace(samples.timeline(2, 2)))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")]
    assert names == ["rank 0 (simulated)", "compute", "rank 1 (simulated)", "compute"]
