from pathlib import Path

import pytest
import torch

from autopipe.cli.entry import run
from autopipe.cli.export import TARGETS
from autopipe.documents.files import save
from autopipe.exporters.named import NAMES
from autopipe.recorder import record
from tests.exporters.plans import at_blocks, planned
from tests.models import GPT


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    torch.manual_seed(0)
    graph = record(GPT(), (torch.zeros(4, 16, dtype=torch.int64),)).graph
    save(planned(graph, at_blocks(graph, "blocks.2"), schedule="zb-h1"), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


def test_the_command_knows_every_runtime() -> None:
    assert TARGETS == NAMES


def test_the_file_goes_to_stdout_and_remarks_to_stderr(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", plan_file, "--to", "accelerate"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{")
    assert "no pipeline" in err


def test_all_files_go_into_the_folder(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert run(["export", plan_file, "--to", "torch", "-o", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["schedule.csv", "train_with_torch.py"]
    assert capsys.readouterr().out == ""


def test_what_the_runtime_cannot_express_is_one_sentence(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", plan_file, "--to", "megatron"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: the plan runs zb-h1, and Megatron-Core cannot")
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_made_is_one_sentence(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", plan_file, "--to", "torch", "-o", f"{plan_file}/inside"]) == 1
    assert "Traceback" not in capsys.readouterr().err
