"""1F1B."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.schedules.action import peak_in_flight
from autopipe.schedules.gpipe import gpipe
from autopipe.schedules.one_f_one_b import one_f_one_b


def test_last_stage_has_no_warm_up():
    assert [str(action) for action in one_f_one_b(3, 2).actions[2]] == ["F2.0", "B2.0", "F2.1", "B2.1"]


@given(p=st.integers(1, 8), m=st.integers(1, 20), depth=st.integers(0, 3))
def test_a_rank_holds_no_more_than_its_distance_to_the_end(p, m, depth):
    schedule = one_f_one_b(p, m, depth=depth)
    for rank, actions in enumerate(schedule.actions):
        assert peak_in_flight(actions) == min(m, p - rank + (depth if rank < p - 1 else 0))


@given(p=st.integers(1, 8), m=st.integers(1, 20))
def test_gpipe_holds_every_micro_batch(p, m):
    assert all(peak_in_flight(actions) == m for actions in gpipe(p, m).actions)
