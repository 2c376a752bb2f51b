from pathlib import Path

import msgspec
import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import save
from autopipe.planner import simulate_plan
from tests.reporting.page.plans import plan_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(plan_of(2, 4), "plan.json")
    save(simulate_plan(plan_of(2, 4)), "timeline.json")
    save(simulate_plan(plan_of(3, 4)), "other.json")
    return tmp_path


def test_a_page_is_written_beside_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "plan.json", "timeline.json"]) == 0
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert "file://" in capsys.readouterr().out


def test_a_timeline_of_other_ranks_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "plan.json", "other.json"]) == 1
    assert "other.json has 3 ranks and plan.json 2" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_a_page_that_cannot_be_written_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "plan.json", "-o", "missing/report.html"]) == 1
    assert capsys.readouterr().err.startswith("Error: ")


def test_a_plan_without_a_graph_has_a_page_without_the_graph(folder: Path) -> None:
    save(msgspec.structs.replace(plan_of(2, 4), graph=None), "bare.json")
    assert run(["report", "bare.json", "-q"]) == 0
    assert "Layers and cuts" not in (folder / "report.html").read_text()
