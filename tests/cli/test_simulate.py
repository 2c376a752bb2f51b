"""``autopipe simulate``: from a plan to its predicted timeline."""

import json
from pathlib import Path

import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import decode, load, save
from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Timeline
from tests.reporting import samples


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    profile, path = tmp_path / "profile.json", tmp_path / "plan.json"
    save(samples.profile(), profile)
    words = ["partition", str(profile), "--gpus", "2", "--stages", "2", "--batch", "8", "-o", str(path), "-q"]
    assert run(words) == 0
    return str(path)


def test_the_timeline_has_the_step_that_the_plan_predicts(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", plan, "--json"]) == 0
    captured = capsys.readouterr()
    timeline = decode(captured.out, Timeline)
    assert timeline.step_ns == load(plan, Plan).step_ns
    assert timeline.source == "simulated"
    assert "rank 1 |" in captured.err


def test_the_picture_has_a_row_for_each_rank_in_eighty_columns(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", plan]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rank ") and "|" in line]
    assert [row[:8] for row in rows] == ["rank 0 |", "rank 1 |"]
    assert all(len(row) <= 80 for row in rows)


def test_timeline_and_trace_are_written_where_asked(plan: str, tmp_path: Path) -> None:
    output, trace = tmp_path / "timeline.json", tmp_path / "trace.json"
    assert run(["simulate", plan, "-o", str(output), "--trace", str(trace), "--quiet"]) == 0
    spans = sum(len(rank.spans) for rank in load(output, Timeline).ranks)
    assert sum(event["ph"] == "X" for event in json.loads(trace.read_text())["traceEvents"]) == spans


def test_a_plan_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "no_plan.json"]) == 1
    assert "cannot read no_plan.json" in capsys.readouterr().err
