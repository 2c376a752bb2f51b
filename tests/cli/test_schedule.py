"""``autopipe schedule``."""

import json
from pathlib import Path

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


@pytest.mark.parametrize("form", ["--csv", "--actions"])
def test_a_file_of_the_users_own_is_drawn_and_simulated(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--stages", "2", "--micro-batches", "3"]
    assert run(["schedule", "zb-v", *sizes, form]) == 0
    mine = tmp_path / "mine"
    mine.write_text(capsys.readouterr().out)
    assert run(["schedule", "zb-v", *sizes]) == 0
    grid = capsys.readouterr().out
    assert run(["schedule", str(mine)]) == 0
    assert capsys.readouterr().out == grid
    times = ["--times", "1,1,1", "--json"]
    assert run(["simulate", "--schedule", str(mine), *times]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert run(["simulate", "--schedule", "zb-v", *sizes, *times]) == 0
    assert {**json.loads(capsys.readouterr().out), "schedule": "mine"} == answer


def test_a_file_whose_schedule_cannot_run_is_refused_with_the_step_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text("0F0,0B0\n1B0,1F0\n")
    assert run(["schedule", str(tmp_path / "bad.csv")]) == 1
    assert ">B1.0<" in capsys.readouterr().err
    assert run(["schedule", str(tmp_path / "bad.csv"), "--stages", "2"]) == 2
