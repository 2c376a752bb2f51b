"""Idle time by cause, and the critical path, on steps whose answers are known."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.timeline import Lane
from autopipe.hardware.cluster import Link as Wire
from autopipe.schedules.comms import chain
from autopipe.schedules.named import NAMES, make
from autopipe.simulator.conditions import Conditions
from autopipe.simulator.critical_path import Link, critical_path, shares
from autopipe.simulator.events import simulate
from autopipe.simulator.idle import idle_times
from autopipe.simulator.metrics import makespan_ns

figures = st.integers(1, 60)


def timeline(times, *, name="1f1b", micro_batches=4, latency_ns=0, conditions=None, **costs):
    stages = [
        StageCost(forward_ns=f, backward_ns=i + w, input_grad_ns=i, weight_grad_ns=w, **costs) for f, i, w in times
    ]
    virtual = 2 if name in ("interleaved", "bfs", "zb-v", "dualpipe-v") else 1
    schedule = make(name, stages=len(times) // virtual, micro_batches=micro_batches, virtual=virtual)
    edges = [EdgeCost(edge=e, link=Wire(latency_ns=latency_ns)) for e in chain(schedule.stages)]
    return simulate(schedule, stages, edges, conditions=conditions or Conditions())


def test_equal_stages_without_links_idle_while_the_pipeline_fills_and_drains_and_turns():
    first, last = idle_times(timeline([(100, 100, 100)] * 2))
    assert (first.warm_up_ns, first.cool_down_ns, first.dependency_ns, first.imbalance_ns) == (0, 0, 300, 0)
    assert (last.warm_up_ns, last.cool_down_ns, last.dependency_ns) == (100, 200, 0)


def test_waiting_for_a_slower_rank_is_imbalance():
    slow, quick = idle_times(timeline([(200, 100, 100), (100, 50, 50)]))
    assert slow.imbalance_ns == 0
    assert (quick.warm_up_ns, quick.imbalance_ns, quick.dependency_ns, quick.cool_down_ns) == (200, 400, 0, 200)


def test_waiting_for_what_is_on_its_way_is_due_to_the_link():
    _, last = idle_times(timeline([(100, 100, 100)] * 2, micro_batches=1, latency_ns=40))
    assert last.warm_up_ns == 140
    first, _ = idle_times(timeline([(100, 100, 100)] * 2, micro_batches=1, latency_ns=40))
    assert (first.link_ns, first.dependency_ns) == (40, 340)


def test_the_path_of_one_micro_batch_goes_there_and_back():
    found = critical_path(timeline([(100, 100, 100)] * 2, micro_batches=1, latency_ns=40))
    assert [(part.rank, str(part.kind), part.label) for part in found] == [
        (0, "compute", "F0.0"),
        (1, "transfer", "a0>1.0"),
        (1, "compute", "F1.0"),
        (1, "compute", "B1.0"),
        (0, "transfer", "g1>0.0"),
        (0, "compute", "B0.0"),
    ]
    assert shares(found) == {Link.COMPUTE: 600, Link.TRANSFER: 80, Link.OVERHEAD: 0}


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    times=st.lists(st.tuples(figures, figures, figures), min_size=4, max_size=4),
    m=st.integers(1, 6),
    latency_ns=st.integers(0, 30),
    message_ns=st.integers(0, 5),
    overlap=st.booleans(),
    optimizer_ns=st.integers(0, 20),
)
def test_all_of_a_ranks_time_has_a_cause_and_the_path_has_no_gap(
    name, times, m, latency_ns, message_ns, overlap, optimizer_ns
):
    conditions = Conditions(action_ns=2, message_ns=message_ns, overlap=overlap)
    found = timeline(
        times, name=name, micro_batches=m, latency_ns=latency_ns, conditions=conditions, optimizer_ns=optimizer_ns
    )
    for rank in idle_times(found):
        parts = [getattr(rank, field) for field in rank.__struct_fields__ if field != "rank"]
        assert min(parts) >= 0
        assert sum(parts) == found.step_ns
        assert rank.overhead_ns == 0
    path = critical_path(found)
    assert path[0].start_ns == 0
    assert path[-1].end_ns == makespan_ns(found)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(path))
    assert all(part.kind is not Link.OVERHEAD or part.label.startswith("send ") for part in path)
    assert any(span.lane is Lane.COMPUTE for span in found.ranks[0].spans)


def test_a_path_over_free_links_changes_ranks_and_has_no_transfer():
    found = critical_path(timeline([(100, 100, 100)] * 2, micro_batches=2))
    assert {str(part.kind) for part in found} == {"compute"}
    assert {part.rank for part in found} == {0, 1}
    assert found[0].start_ns == 0
    assert all(one.end_ns == other.start_ns for one, other in pairwise(found))
