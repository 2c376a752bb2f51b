"""``autopipe partition``: from a profile or a model to a plan, without torch where a file is given."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import decode, encode, load, save
from autopipe.documents.plan import Plan
from tests.profiles import chain_profile
from tests.reporting import samples

WITHOUT_TORCH = """
import sys
from autopipe.cli.entry import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    save(samples.profile(), path)
    return str(path)


def covered(plan: Plan) -> list[int]:
    return [layer for stage in plan.stages for layer in range(stage.begin, stage.end)]


def test_every_layer_of_the_profile_is_in_one_stage(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", profile, "--gpus", "2", "--batch", "8", "--json"]) == 0
    captured = capsys.readouterr()
    plan = decode(captured.out, Plan)
    assert covered(plan) == list(range(5))
    assert plan.batch_size * plan.data_parallel_size == 8
    assert "Stages, for one micro-batch" in captured.err


def test_the_plan_is_written_where_asked(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "plan.json"
    assert run(["partition", profile, "--gpus", "2", "--batch", "8", "--micro-batch", "2", "-o", str(output)]) == 0
    assert load(output, Plan).micro_batch_size == 2
    assert "Stages, for one micro-batch" in capsys.readouterr().out


def test_a_schedule_that_is_asked_for_is_taken(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", profile, "--gpus", "2", "--batch", "8", "--schedule", "gpipe", "--json", "-q"]) == 0
    assert decode(capsys.readouterr().out, Plan).schedule == "gpipe"


def test_a_slow_link_makes_the_step_longer(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", profile, "--gpus", "2", "--stages", "2", "--batch", "8", "--json", "-q"]
    steps = []
    for link in ([], ["--bandwidth", "10MB", "--latency-us", "100"]):
        assert run([*words, *link]) == 0
        steps.append(decode(capsys.readouterr().out, Plan).step_ns)
    assert steps[0] < steps[1]


def test_too_little_memory_is_exit_code_three_with_what_would_fit(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    words = ["partition", profile, "--gpus", "2", "--batch", "8", "--memory", "10MiB", "-o", str(output)]
    assert run(words) == 3
    assert "MiB" in capsys.readouterr().err
    assert not output.exists()


def test_a_source_that_is_neither_file_nor_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", "profil.json", "--gpus", "2", "--batch", "8"]) == 1
    assert "neither a file nor a model" in capsys.readouterr().err


def test_a_file_that_is_no_profile_is_refused_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"format": "autopipe.plan"}')
    assert run(["partition", str(path), "--gpus", "2", "--batch", "8"]) == 1
    assert "broken.json is not a valid autopipe.profile document" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("forward_ns", -5, "layers[1] (layer1).costs[0].forward_ns"),
        ("forward_ns", math.nan, "$.layers[1].costs[0].forward_ns"),
        ("saved_bytes", math.inf, "$.layers[1].costs[0].saved_bytes"),
        ("forward_ns", None, "$.layers[1].costs[0].forward_ns"),
        ("forward_ns", 10**30, "$.layers[1].costs[0].forward_ns"),
    ],
)
def test_a_faulty_figure_is_refused_by_its_path(
    field: str, value: float | None, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(encode(chain_profile([10, 20, 30])))
    document["layers"][1]["costs"][0][field] = value
    refused(document, path, tmp_path, capsys)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda document: document["layers"][1]["costs"][0].pop("forward_ns"), "$.layers[1].costs[0]"),
        (lambda document: document["values"][1].update(producer=2, consumers=[0]), "values[1] (v1).consumers"),
        (lambda document: document["layers"][1].update(name="layer0"), "layers[1] (layer0).name"),
        (lambda document: document.update(layers=[]), "layers is empty"),
    ],
)
def test_a_profile_that_is_none_is_refused_by_its_path(
    change: Callable[[Any], Any], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(encode(chain_profile([10, 20, 30])))
    change(document)
    refused(document, path, tmp_path, capsys)


def refused(document: Any, path: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planning ends with exit code 1 and one sentence that names the path of the fault."""
    (folder / "faulty.json").write_text(json.dumps(document))
    assert run(["partition", str(folder / "faulty.json"), "--gpus", "2", "--batch", "8"]) == 1
    said = capsys.readouterr().err
    assert path in said
    assert "Traceback" not in said


def test_a_model_is_profiled_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", "tests.models:mlp", "--input", "4x64", "--budget", "0.2", "--gpus", "2", "--batch", "8"]
    assert run([*words, "--json", "-q"]) == 0
    plan = decode(capsys.readouterr().out, Plan)
    assert plan.graph is not None
    assert covered(plan) == list(range(len(plan.graph.layers)))


def test_the_stages_are_written_as_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", "tests.models:mlp", "--input", "4x64", "--budget", "0.2", "--gpus", "2", "--batch", "8"]
    assert run([*words, "--stages", "2", "--virtual", "1", "--emit", str(tmp_path / "parts")]) == 0
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["__init__.py", "stage_0.py", "stage_1.py"]
    assert "parts.split(model)" in capsys.readouterr().out


def test_a_folder_that_python_cannot_import_is_refused(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", profile, "--gpus", "2", "--batch", "8", "--emit", "my-stages"]) == 2
    assert "a name that Python can import" in capsys.readouterr().err


def test_planning_from_a_file_loads_no_torch(profile: str) -> None:
    words = ["partition", profile, "--gpus", "2", "--batch", "8", "--quiet"]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], check=True)
