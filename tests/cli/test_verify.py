from pathlib import Path

import pytest

from autopipe.cli.entry import run

MODEL = """
import torch
from torch import nn
from tests.models import GPT

def gpt():
    torch.manual_seed(0)
    return GPT(), (torch.randint(97, (8, 16)),), lambda output: output.square().mean()

class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)) for _ in range(4)))
    def forward(self, x):
        return self.layers(x)

def without_loss():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4))), (torch.randn(8, 16),), None

def dropped():
    torch.manual_seed(0)
    return Dropped(), (torch.randn(8, 16),), lambda output: output.square().mean()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(name: str, replicas: int = 1) -> None:
    profile = ["profile", f"model.py:{name}", "--micro-batch", "2,4", "--budget", "1", "-o", "profile.json", "-q"]
    assert run(profile) == 0
    assert (
        run(
            [
                "partition",
                "profile.json",
                "--gpus",
                "2",
                "--batch",
                "8",
                "--replicas",
                str(replicas),
                "-o",
                "plan.json",
                "-q",
            ]
        )
        == 0
    )


def test_a_model_without_a_loss_is_compared_by_the_one_that_its_profile_has(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned("without_loss")
    assert run(["verify", "model.py:without_loss", "plan.json"]) == 0
    assert "equal bit for bit" in capsys.readouterr().out


def test_gradients_equal_the_plain_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("gpt")
    assert run(["verify", "model.py:gpt", "plan.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Loss: equal")
    assert "tokens.weight is added up over stages 0, " in out


def test_masks_of_dropout_are_the_same_in_one_stage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("dropped")
    assert run(["verify", "model.py:dropped", "plan.json"]) == 0
    assert "Gradients: 8 of 8 equal bit for bit." in capsys.readouterr().out


def test_replicas_agree_but_for_the_order_of_their_sums(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("gpt", replicas=2)
    assert run(["verify", "model.py:gpt", "plan.json"]) == 0
    assert capsys.readouterr().out.startswith("Loss: equal")


def test_replicas_draw_the_masks_of_one_stage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("dropped", replicas=2)
    assert run(["verify", "model.py:dropped", "plan.json"]) == 0
    assert "Loss: equal" in capsys.readouterr().out


def test_a_plan_of_a_model_with_other_rates_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("dropped")
    (folder / "model.py").write_text(MODEL.replace("nn.Dropout(0.5)", "nn.Dropout(0.1)"))
    assert run(["verify", "model.py:dropped", "plan.json"]) == 1
    assert "is configured otherwise" in " ".join(capsys.readouterr().err.split())


def test_a_difference_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned("gpt")
    from autopipe.cli import verify

    right = verify._plain

    def wrong(model, subject, plan):  # type: ignore[no-untyped-def]
        loss = right(model, subject, plan)
        model.blocks[1].up.weight.grad[0, 0] += 1e-3
        return loss

    monkeypatch.setattr(verify, "_plain", wrong)
    assert run(["verify", "model.py:gpt", "plan.json"]) == 1
    assert "different numbers: blocks.1.up.weight" in capsys.readouterr().err
