"""``autopipe schedule``."""

import pytest

from autopipe.cli.entry import run
from autopipe.schedules.action import parse_schedule
from autopipe.schedules.one_f_one_b import one_f_one_b


def test_the_grid_of_gpipe_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "gpipe", "--stages", "2", "--micro-batches", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rank 0 | F0 F1 F2       B0 B1 B2",
        "rank 1 |    F0 F1 F2 B0 B1 B2",
    ]


def test_actions_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "1f1b", "--stages", "3", "--micro-batches", "4", "--depth", "1", "--actions"]) == 0
    assert parse_schedule(capsys.readouterr().out, name="1f1b") == one_f_one_b(3, 4, depth=1)


def test_impossible_sizes_are_refused_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "gpipe", "--stages", "0", "--micro-batches", "3"]) == 1
    assert capsys.readouterr().err == "Error: a schedule with 0 stages does not exist: give at least 1.\n"


def test_an_unknown_schedule_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "2f2b", "--stages", "2", "--micro-batches", "3"]) == 2
    assert "'gpipe', '1f1b'" in capsys.readouterr().err
