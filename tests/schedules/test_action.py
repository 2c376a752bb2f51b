"""The schedule language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import ScheduleError
from autopipe.schedules.action import Action, Op, parse_schedule
from autopipe.schedules.named import make

actions = st.builds(Action, st.sampled_from(Op), st.integers(0, 999), st.integers(0, 99_999))


@given(actions)
def test_an_action_is_read_back_from_its_text(action):
    assert Action.parse(str(action)) == action


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["gpipe", "1f1b", "forward"]))
def test_a_schedule_is_read_back_from_its_text(stages, micro_batches, name):
    schedule = make(name, stages=stages, micro_batches=micro_batches)
    assert parse_schedule(schedule.to_text(), name=name) == schedule


@pytest.mark.parametrize("word", ["", "F", "F0", "X0.0", "F0.0.0", "F-1.0", "f0.0", "F0.٣"])
def test_a_word_that_is_no_action_is_refused(word):
    with pytest.raises(ScheduleError, match="is no action"):
        Action.parse(word)


def test_a_stage_on_two_ranks_is_refused():
    with pytest.raises(ScheduleError, match=r"stage 0 is on rank 0 and, by B0\.0, on rank 1"):
        parse_schedule("F0.0\nB0.0")


def test_a_gap_in_the_stages_is_refused():
    with pytest.raises(ScheduleError, match=r"stages \[1\] appear on no rank"):
        parse_schedule("F0.0 B0.0\nF2.0 B2.0")
