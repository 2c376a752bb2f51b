"""The Chrome trace: every span once, in microseconds, named for people."""

import json

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.hardware.cluster import Link
from autopipe.reporting.chrome_trace import chrome_trace
from autopipe.schedules.comms import chain
from autopipe.schedules.named import make
from autopipe.simulator.events import simulate
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


def test_an_arrow_leads_from_every_sender_to_its_reader() -> None:
    stages = [StageCost(forward_ns=100, backward_ns=200, saved_bytes=8)] * 2
    edges = [EdgeCost(edge=edge, link=Link(latency_ns=5)) for edge in chain(2)]
    timeline = simulate(make("1f1b", stages=2, micro_batches=2), stages, edges)
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    arrows = {event["name"]: [] for event in events if event["ph"] == "s"}
    for event in events:
        if event["ph"] in ("s", "f"):
            arrows[event["name"]].append((event["pid"], event["ts"]))
    assert arrows["a0>1.0"] == [(0, 0.099), (1, 0.105)]
    assert sorted(arrows) == ["a0>1.0", "a0>1.1", "g1>0.0", "g1>0.1"]
    counted = [(e["name"], e["args"]) for e in events if e["ph"] == "C" and e["pid"] == 1]
    assert counted[:4] == [
        ("in flight", {"micro-batches": 1}),
        ("memory", {"bytes": 8}),
        ("in flight", {"micro-batches": 0}),
        ("memory", {"bytes": 8}),
    ]
