"""The simulator: known bubble ratios, links, memory, and what cannot run."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.timeline import Lane
from autopipe.errors import InputError, ScheduleError
from autopipe.hardware.cluster import Link
from autopipe.schedules.action import parse_schedule
from autopipe.schedules.comms import Edge, chain
from autopipe.schedules.named import make
from autopipe.simulator.events import run, simulate
from autopipe.simulator.metrics import bubble_ratio
from tests.peaks import rank_peaks

MILLISECOND = 1_000_000


def equal_stages(count: int, forward_ns: int = 10, backward_ns: int = 20, **figures: int) -> list[StageCost]:
    return [StageCost(forward_ns=forward_ns, backward_ns=backward_ns, **figures)] * count


def linked(stages: int, latency_ns: int = 0, size: int = 0, bytes_per_s: int | None = None) -> list[EdgeCost]:
    link = Link(latency_ns=latency_ns, bytes_per_s=bytes_per_s)
    return [EdgeCost(edge=edge, forward_bytes=size, backward_bytes=size, link=link) for edge in chain(stages)]


@given(p=st.integers(1, 8), m=st.integers(1, 20), name=st.sampled_from(["gpipe", "1f1b"]))
def test_equal_stages_idle_by_the_known_share(p, m, name):
    result = run(make(name, stages=p, micro_batches=m), equal_stages(p), linked(p))
    assert 1 - Fraction(sum(result.busy_ns), p * result.step_ns) == Fraction(p - 1, m + p - 1)


@pytest.mark.parametrize(
    ("p", "m", "forward", "input_grad", "weight_grad", "hop", "published"),
    [
        (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431),
        (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985),
        (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240),
        (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552),
        (16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082),
        (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251),
    ],
)
def test_published_1f1b_bubble_ratios_come_out_to_four_decimals(p, m, forward, input_grad, weight_grad, hop, published):
    """Zero Bubble Pipeline Parallelism, arXiv 2401.10241, tables 3 and 5."""
    stages = equal_stages(p, round(forward * MILLISECOND), round((input_grad + weight_grad) * MILLISECOND))
    result = run(make("1f1b", stages=p, micro_batches=m), stages, linked(p, round(hop * MILLISECOND)), with_spans=False)
    assert round(bubble_ratio(result.busy_ns, result.step_ns), 4) == published


@pytest.mark.parametrize(
    ("p", "m", "forward", "input_grad", "weight_grad", "hop", "interleaved", "zb_1p"),
    [
        (8, 24, 18.522, 18.086, 9.337, 0.601, 0.1055, 0.1585),
        (8, 32, 18.513, 18.086, 9.331, 0.626, 0.0818, 0.1242),
        (8, 64, 18.546, 18.097, 9.321, 0.762, 0.0443, 0.0674),
        (16, 48, 11.347, 11.248, 8.132, 0.377, 0.1104, 0.1397),
        (16, 64, 11.307, 11.254, 8.101, 0.379, 0.0852, 0.1088),
        (16, 128, 11.325, 11.308, 8.109, 0.378, 0.0445, 0.0576),
    ],
)
def test_published_interleaved_and_zero_bubble_ratios_come_out(
    p, m, forward, input_grad, weight_grad, hop, interleaved, zb_1p
):
    """The same tables; three virtual stages of one layer each. ZB-1p comes out to four decimals."""

    def ratio(name: str, virtual: int) -> float:
        parts = [round(part * MILLISECOND / virtual) for part in (forward, input_grad, weight_grad)]
        cost = StageCost(
            forward_ns=parts[0], backward_ns=parts[1] + parts[2], input_grad_ns=parts[1], weight_grad_ns=parts[2]
        )
        schedule = make(name, stages=p, micro_batches=m, virtual=virtual)
        links = linked(schedule.stages, round(hop * MILLISECOND))
        result = run(schedule, [cost] * schedule.stages, links, with_spans=False)
        return bubble_ratio(result.busy_ns, result.step_ns)

    assert ratio("interleaved", 3) == pytest.approx(interleaved, abs=0.0035)
    assert round(ratio("zb-h1", 1), 4) == zb_1p


@pytest.mark.parametrize(
    ("p", "m", "v", "ideal"),
    [(8, 8, 2, 0.304), (8, 8, 4, 0.179), (8, 32, 2, 0.099), (8, 32, 4, 0.052), (4, 8, 2, 0.158), (4, 8, 4, 0.086)],
)
def test_ideal_interleaved_bubble_ratios(p, m, v, ideal):
    schedule = make("interleaved", stages=p, micro_batches=m, virtual=v)
    result = run(schedule, equal_stages(p * v), linked(p * v))
    assert round(bubble_ratio(result.busy_ns, result.step_ns), 3) == ideal


@pytest.mark.parametrize(("p", "m", "ideal"), [(8, 8, 0.467), (8, 32, 0.179), (4, 8, 0.273)])
def test_ideal_1f1b_bubble_ratios(p, m, ideal):
    result = run(make("1f1b", stages=p, micro_batches=m), equal_stages(p), linked(p))
    assert round(bubble_ratio(result.busy_ns, result.step_ns), 3) == ideal


def test_two_ranks_in_full():
    timeline = simulate(make("1f1b", stages=2, micro_batches=1), equal_stages(2, optimizer_ns=5), linked(2, 3))
    spans = [[(span.lane, span.label, span.start_ns, span.end_ns) for span in rank.spans] for rank in timeline.ranks]
    assert spans[0] == [
        (Lane.COMPUTE, "F0.0", 0, 10),
        (Lane.SEND, "a0>1.0", 10, 13),
        (Lane.WAIT, "await g1>0.0", 10, 46),
        (Lane.RECEIVE, "g1>0.0", 43, 46),
        (Lane.COMPUTE, "B0.0", 46, 66),
        (Lane.OPTIMIZER, "optimizer", 66, 71),
    ]
    assert spans[1] == [
        (Lane.WAIT, "await a0>1.0", 0, 13),
        (Lane.RECEIVE, "a0>1.0", 10, 13),
        (Lane.COMPUTE, "F1.0", 13, 23),
        (Lane.COMPUTE, "B1.0", 23, 43),
        (Lane.SEND, "g1>0.0", 43, 46),
        (Lane.WAIT, "sent g1>0.0", 43, 46),
        (Lane.OPTIMIZER, "optimizer", 66, 71),
    ]
    assert timeline.step_ns == 71


def test_the_optimizer_waits_for_the_last_rank_and_the_step_for_the_last_optimizer():
    stages = [StageCost(forward_ns=10, backward_ns=20, optimizer_ns=ns, tied_ns=7) for ns in (40, 1)]
    result = run(make("1f1b", stages=2, micro_batches=1), stages, linked(2))
    assert (result.makespan_ns, result.step_ns, result.busy_ns) == (60, 107, (70, 31))


def test_a_link_carries_one_message_at_a_time():
    """Three messages of 100 ns on a link that is faster in latency than in bandwidth leave one after the other."""
    stages = [StageCost(forward_ns=1, backward_ns=1), StageCost(forward_ns=1, backward_ns=1)]
    timeline = simulate(make("gpipe", stages=2, micro_batches=3), stages, linked(2, 5, 100, 10**9))
    arrivals = [span.end_ns for span in timeline.ranks[1].spans if span.lane is Lane.RECEIVE]
    assert arrivals == [106, 206, 306]


def test_a_transfer_does_not_begin_before_its_receive_is_posted():
    """Rank 1 posts two actions ahead: while it is at F1.0, the message for F1.3 has nowhere to go."""
    stages = [StageCost(forward_ns=1, backward_ns=1), StageCost(forward_ns=1000, backward_ns=1)]
    timeline = simulate(make("gpipe", stages=2, micro_batches=4), stages, linked(2, 10))
    starts = [span.start_ns for span in timeline.ranks[1].spans if span.lane is Lane.RECEIVE]
    assert starts[:3] == [1, 2, 3]
    assert starts[3] == 1011


def test_a_skip_goes_straight_to_its_reader():
    edges = [*linked(3), EdgeCost(edge=Edge(0, 2), forward_bytes=8, link=Link(latency_ns=500))]
    result = run(make("1f1b", stages=3, micro_batches=1), equal_stages(3), edges)
    assert result.makespan_ns == 10 + 500 + 30 + 500 + 20


def test_what_cannot_run_is_refused_with_the_fault():
    with pytest.raises(ScheduleError, match="wait for each other"):
        simulate(parse_schedule("F0.0 B0.0 F0.1 B0.1\nF1.0 F1.1 B1.0 B1.1"), equal_stages(2), linked(2))


def test_a_split_backward_needs_its_two_parts():
    schedule = parse_schedule("F0.0 I0.0 W0.0")
    with pytest.raises(InputError, match="two parts were not measured"):
        run(schedule, equal_stages(1), [])
    assert run(schedule, equal_stages(1, input_grad_ns=12, weight_grad_ns=8), []).step_ns == 30


def test_a_forward_only_step_has_no_optimizer():
    result = run(make("forward", stages=2, micro_batches=3), equal_stages(2, optimizer_ns=99, tied_ns=99), linked(2))
    assert result.step_ns == 40
    assert result.peak_in_flight == (1, 1)


costs = st.builds(
    StageCost,
    forward_ns=st.integers(0, 30),
    backward_ns=st.integers(0, 30),
    optimizer_ns=st.integers(0, 5),
    state_bytes=st.integers(0, 9),
    saved_bytes=st.integers(0, 9),
    working_bytes=st.integers(0, 9),
)


@settings(deadline=None)
@given(
    stages=st.lists(costs, min_size=1, max_size=5),
    m=st.integers(1, 9),
    name=st.sampled_from(["gpipe", "1f1b"]),
    latency=st.integers(0, 20),
)
def test_every_step_obeys_what_holds_for_all(stages, m, name, latency):
    p = len(stages)
    schedule, edges = make(name, stages=p, micro_batches=m), linked(p, latency, 7, 10**9)
    timeline = simulate(schedule, stages, edges)
    result = run(schedule, stages, edges, with_spans=False)
    assert timeline.step_ns == result.step_ns
    assert tuple(rank.peak_bytes for rank in timeline.ranks) == rank_peaks(schedule, stages, edges)
    for number, rank in enumerate(timeline.ranks):
        actions = [span for span in rank.spans if span.lane is Lane.COMPUTE]
        assert sorted(span.label for span in actions) == sorted(map(str, schedule.actions[number]))
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(actions))
        before = sum(stage.forward_ns + stage.backward_ns for stage in stages[:number])
        own = m * (stages[number].forward_ns + stages[number].backward_ns)
        assert result.makespan_ns >= before + own + 2 * number * (latency + 7)


@settings(deadline=None)
@given(stages=st.lists(costs, min_size=2, max_size=4), m=st.integers(1, 8))
def test_a_slower_link_never_makes_1f1b_faster(stages, m):
    p = len(stages)
    schedule = make("1f1b", stages=p, micro_batches=m)
    steps = [run(schedule, stages, linked(p, latency), with_spans=False).step_ns for latency in (0, 1, 9, 40)]
    assert steps == sorted(steps)


def test_gradients_are_summed_over_replicas_before_the_optimizer():
    stages = [StageCost(forward_ns=10, backward_ns=20, replica_ns=7, optimizer_ns=5)] * 2
    alone = [StageCost(forward_ns=10, backward_ns=20, optimizer_ns=5)] * 2
    schedule, edges = make("1f1b", stages=2, micro_batches=3), [EdgeCost(edge=edge) for edge in chain(2)]
    assert run(schedule, stages, edges).step_ns == run(schedule, alone, edges).step_ns + 7
    spans = [span.label for span in run(schedule, stages, edges).spans[0]]
    assert spans[-2:] == ["gradients of replicas", "optimizer"]
