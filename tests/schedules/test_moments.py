"""The moments at which ranks hold most."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.costs.stages import StageCost
from autopipe.schedules.action import peak_in_flight
from autopipe.schedules.moments import named_moments, rank_moments
from autopipe.schedules.named import make
from autopipe.schedules.residency import StageHolding
from tests.peaks import rank_peaks


@pytest.mark.parametrize("depth", [0, 1])
def test_1f1b_holds_fewer_the_later_the_rank(depth):
    rows = named_moments("1f1b", ranks=3, micro_batches=9, depth=depth)
    assert [max(moment.held[0].in_flight for moment in row) for row in rows] == [2 + depth, 1 + depth, 0]


def test_two_ranks_in_full():
    first, last = rank_moments(make("1f1b", stages=2, micro_batches=4))
    assert [(moment.held[0], moment.forward) for moment in first] == [
        (StageHolding(in_flight=1, inputs=0, gradients=1, outputs=1, input_gradients=0, unanswered=3), False),
        (StageHolding(in_flight=1, inputs=0, gradients=2, outputs=1, input_gradients=0, unanswered=3), True),
    ]
    assert {moment.held[0].in_flight for moment in last} == {0}
    assert max(moment.held[0].input_gradients for moment in last) == 3


@given(p=st.integers(1, 6), m=st.integers(1, 12), name=st.sampled_from(["gpipe", "1f1b"]))
def test_at_its_largest_moment_a_rank_holds_all_but_one_of_its_peak_in_flight(p, m, name):
    schedule = make(name, stages=p, micro_batches=m)
    for rank, row in enumerate(rank_moments(schedule)):
        assert max(moment.held[0].in_flight for moment in row) == peak_in_flight(schedule.actions[rank]) - 1


SIZES = [("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("interleaved", 3), ("bfs", 2)]


@pytest.mark.parametrize(("name", "virtual"), SIZES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3, 40, 47])
def test_what_repeats_itself_is_walked_once(name, virtual, ranks, micro_batches):
    whole = rank_moments(make(name, stages=ranks, micro_batches=micro_batches, virtual=virtual))
    assert named_moments(name, ranks=ranks, micro_batches=micro_batches, virtual=virtual) == whole


@settings(deadline=None, max_examples=60)
@given(data=st.data(), kind=st.sampled_from(SIZES), ranks=st.integers(1, 4), micro_batches=st.integers(1, 9))
def test_no_stages_need_more_than_the_moments_say(data, kind, ranks, micro_batches):
    """Without messages, the largest moment is exactly the peak of the lowered schedule."""
    name, virtual = kind
    figures = st.integers(0, 50)
    costs = [
        StageCost(forward_ns=1, backward_ns=1, saved_bytes=data.draw(figures), working_bytes=data.draw(figures))
        for _ in range(ranks * virtual)
    ]
    schedule = make(name, stages=ranks, micro_batches=micro_batches, virtual=virtual)
    peaks = [
        max(
            sum(
                costs[stage].saved_bytes * held.in_flight
                for stage, held in zip(moment.stages, moment.held, strict=True)
            )
            + costs[moment.in_hand].saved_bytes
            + costs[moment.in_hand].working_bytes
            for moment in row
        )
        for row in rank_moments(schedule)
    ]
    assert tuple(peaks) == rank_peaks(schedule, costs, ())
