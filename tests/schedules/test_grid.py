"""Schedules drawn as text."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import ScheduleError
from autopipe.schedules import forward_only, gpipe, one_f_one_b
from autopipe.schedules.action import Op, parse_schedule
from autopipe.schedules.grid import draw, mark
from autopipe.schedules.named import make


@pytest.mark.parametrize(
    ("name", "generator"),
    [("gpipe", gpipe.gpipe), ("1f1b", one_f_one_b.one_f_one_b), ("forward", forward_only.forward_only)],
)
def test_docstrings_show_the_grid_that_is_drawn(name, generator):
    documented = [line for line in inspect.getdoc(generator).splitlines() if "rank " in line and "|" in line]
    drawn = draw(make(name, stages=4, micro_batches=8))
    assert [line.strip() for line in documented] == drawn.splitlines()


def test_a_long_backward_is_drawn_out():
    assert draw(make("gpipe", stages=2, micro_batches=2), cells={Op.BACKWARD: 2}) == (
        "rank 0 | F0 F1          B0--- B1---\n"
        "rank 1 |    F0 F1 B0--- B1---\n"
    )  # fmt: skip


def test_virtual_stages_are_labelled_with_their_stage():
    assert draw(parse_schedule("F0.0 F2.0 B2.0 B0.0\nF1.0 B1.0")) == (
        "rank 0 | F0.0      F2.0 B2.0      B0.0\n"
        "rank 1 |      F1.0           B1.0\n"
    )  # fmt: skip


def test_a_schedule_that_hangs_is_not_drawn():
    with pytest.raises(ScheduleError, match=r">F1\.0<"):
        draw(parse_schedule("B0.0 F0.0\nF1.0 B1.0"))


def test_a_mark_shows_only_what_is_near():
    text = mark(make("1f1b", stages=64, micro_batches=100), {40: 50})
    assert len(text.splitlines()) == 8
    assert "rank 40 | ... " in text
    assert text.count(">") == 1
    assert max(map(len, text.splitlines())) < 140


@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 12), name=st.sampled_from(["gpipe", "1f1b"]))
def test_equal_stages_take_the_known_number_of_cells(stages, micro_batches, name):
    rows = draw(make(name, stages=stages, micro_batches=micro_batches)).splitlines()
    width = len(f"F{micro_batches - 1}") + 1
    cells = max(len(row.partition("| ")[2]) + 1 for row in rows) / width
    assert cells <= 2 * (micro_batches + stages - 1) < cells + 1
