"""A share of the fuzz: mutated documents and command lines end in a sentence, never in a traceback or a hang."""

import json
from pathlib import Path
from typing import Any

import pytest

from autopipe.cli.entry import run
from autopipe.schedules.named import MAXIMUM_ACTIONS
from tests.fuzz import Corpus, fuzz, make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def test_mutated_documents_and_command_lines_end_in_a_sentence(corpus: Corpus, tmp_path: Path) -> None:
    assert fuzz(range(400), corpus, tmp_path) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"step_ns": -1}, "step_ns is -1, outside 0 to 2**60"),
        ({"pipeline_size": 3}, "pipeline_size is 3, and not every rank has a stage"),
        ({"stages": []}, "stages is empty"),
        ({"device_order": [0, 0]}, "device_order does not hold each of 0 to 1 once"),
        ({"micro_batches": 10**12}, f"at most {MAXIMUM_ACTIONS} are made"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_with_the_fault(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], sentence: str
) -> None:
    plan = json.loads(corpus.files["plan"])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan, **change}))
    assert run(["simulate", str(path)]) == 1
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_report_with_a_profile_of_absurd_figures_is_refused(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = json.loads(corpus.files["profile"])
    profile["values"][0]["bytes"][0] = 2**70
    for name, content in (("plan", corpus.files["plan"]), ("profile", json.dumps(profile).encode())):
        (tmp_path / f"{name}.json").write_bytes(content)
    words = [str(tmp_path / "plan.json"), "--profile", str(tmp_path / "profile.json"), "-o", str(tmp_path / "x.html")]
    assert run(["report", *words]) == 1
    assert "values[0]" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
