"""What ranks hold while they compute."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.schedules.action import parse_schedule
from autopipe.schedules.comms import chain, edges_by_stage
from autopipe.schedules.named import make
from autopipe.schedules.residency import holdings, unanswered


def test_a_micro_batch_between_its_two_backward_parts_stays_in_flight():
    schedule = parse_schedule("F0.0 I0.0 F0.1 W0.0 I0.1 W0.1")
    counts = [held.in_flight.get(0, 0) for held in holdings(schedule, ((),), 0)]
    assert counts == [0, 0, 1, 1, 0, 0]


def test_a_forward_only_rank_keeps_nothing():
    schedule = make("forward", stages=1, micro_batches=4)
    assert all(held.in_flight.get(0, 0) == 0 for held in holdings(schedule, ((),), 0))


@given(p=st.integers(1, 6), m=st.integers(1, 12), name=st.sampled_from(["gpipe", "1f1b"]))
def test_no_holding_goes_below_zero(p, m, name):
    schedule = make(name, stages=p, micro_batches=m)
    near = edges_by_stage(chain(p), p)
    for rank in range(p):
        for held in holdings(schedule, near, rank):
            assert all(count >= 0 for kind in (held.in_flight, held.posted, held.unsent) for count in kind.values())


def test_a_deeper_pipeline_has_more_messages_under_way_to_a_reader_that_answers_none():
    found = [unanswered(make("1f1b", stages=2, micro_batches=8, depth=depth), 0)[0] for depth in (0, 1, 2)]
    assert found == [3, 4, 5]
