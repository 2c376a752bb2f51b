"""Schedules by name."""

import pytest

from autopipe.errors import InputError
from autopipe.schedules.named import NAMES, make


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_bears_the_name_it_was_made_by(name):
    schedule = make(name, stages=3, micro_batches=2)
    assert (schedule.name, schedule.ranks, schedule.micro_batches) == (name, 3, 2)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match="gpipe, 1f1b, interleaved, bfs, zb-h1, zb-h2, zb-v, dualpipe-v, forward"):
        make("1f2b", stages=2, micro_batches=2)


@pytest.mark.parametrize("sizes", [{"stages": 0}, {"micro_batches": 0}, {"virtual": 0}, {"depth": -1}])
def test_sizes_below_the_least_are_refused(sizes):
    with pytest.raises(InputError, match="give at least"):
        make("1f1b", **{"stages": 2, "micro_batches": 2, **sizes})


def test_options_of_another_schedule_are_refused():
    with pytest.raises(InputError, match="depth"):
        make("gpipe", stages=2, micro_batches=2, depth=1)
    with pytest.raises(InputError, match="virtual"):
        make("1f1b", stages=2, micro_batches=2, virtual=2)
