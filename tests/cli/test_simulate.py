"""``autopipe simulate``: from a plan to its predicted timeline."""

import json
from pathlib import Path

import msgspec
import pytest

import autopipe
from autopipe.cli.entry import run
from autopipe.documents.files import decode, load, save
from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Timeline
from tests.profiles import chain_profile
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


QUESTION = ["simulate", "--schedule", "1f1b", "--stages", "8", "--micro-batches", "24", "--link", "0.601"]


def test_a_question_without_a_plan_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUESTION, "--times", "18.522,18.086,9.337", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert round(answer["bubble_ratio"], 4) == 0.2431
    assert answer["bubble_ratio"] + answer["utilisation"] == pytest.approx(1)
    assert answer["peak_in_flight"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert answer["step_ms"] == pytest.approx(24 * (18.522 + 18.086 + 9.337) / answer["utilisation"])


def test_the_executors_own_costs_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "1", "--times", "1,2,3", "--json"]
    assert run([*words, "--action", "0.5", "--message", "0.25"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ms"] == 12 + 4 * 0.5 + 2 * 0.25
    assert run([*words, "--action", "-1"]) == 1
    assert "--action -1.0 is no time" in capsys.readouterr().err


def test_a_plan_is_simulated_under_the_conditions_that_are_given(plan: str, tmp_path: Path) -> None:
    steps = []
    for name, options in (("own", []), ("slow", ["--action", "1"])):
        output = tmp_path / f"{name}.json"
        assert run(["simulate", plan, "-o", str(output), "--quiet", *options]) == 0
        steps.append(load(output, Timeline).step_ns)
    assert steps[1] > steps[0]


def test_stages_may_have_times_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--schedule", "gpipe", "--stages", "2", "--micro-batches", "1", "--json"]
    assert run([*words, "--times", "1,2,3", "--times", "10,20,30"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ms"] == 66.0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([*QUESTION, "--times", "1,2"], 1, "'1,2' is not three numbers"),
        ([*QUESTION, "--times", "1,nan,2"], 1, "cannot be simulated"),
        ([*QUESTION, "--times", "1,1,1", "--times", "1,1,1"], 1, "2 times for 8 stages"),
        (QUESTION, 2, "--times"),
        (["simulate"], 2, "give a PLAN"),
        (["simulate", "plan.json", "--schedule", "1f1b"], 2, "not both"),
    ],
)
def test_a_question_that_cannot_be_answered_gets_a_sentence(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    assert sentence in capsys.readouterr().err


def test_a_plan_edited_by_hand_is_scored_and_told_what_the_best_would_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = chain_profile([10, 10, 10, 30])
    save(found, tmp_path / "profile.json")
    made = autopipe.partition(found, gpus=2, batch_size=8, replicas=1, virtual=1, schedule="1f1b")
    (first, second), path = made.stages, tmp_path / "edited.json"
    edited = msgspec.structs.replace(
        made, stages=(msgspec.structs.replace(first, end=1), msgspec.structs.replace(second, begin=1)), depth=0
    )
    save(edited, path)
    assert run(["simulate", str(path), "--profile", str(tmp_path / "profile.json")]) == 0
    text = capsys.readouterr().out
    assert "Predicted step 1.23 us" in text
    assert "The planner's own takes 810 ns, 34.1 % less" in " ".join(text.split())
