"""`autopipe checkpoint` needs the folder alone."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

from autopipe.cli.entry import run
from tests.executor.pipes import thread_pipe
from tests.models import GPT, JOBS


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    model = GPT(blocks=1)
    x, y = JOBS["gpt"].draw(4)
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=2, loss_fn=JOBS["gpt"].loss)
    optimizer = torch.optim.AdamW(pipe.parameters())
    pipe.step(x, target=y)
    optimizer.step()
    pipe.save(folder, optimizer=optimizer)
    pipe.close()
    return folder, model


def test_inspect_shows_every_tensor_once_with_its_state(
    saved: tuple[Path, nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoint", "inspect", str(saved[0])]) == 0
    out = capsys.readouterr().out
    assert "step-00000001" in out
    assert "GPT at step 1, with AdamW: 16 tensors" in out
    assert out.count("tokens.weight") == 2  # its row, and where the head is tied to it
    assert run(["checkpoint", "inspect", str(saved[0]), "--json"]) == 0
    assert '"format": "autopipe.checkpoint"' in capsys.readouterr().out


def test_one_file_holds_model_and_optimizer_for_torchs_own_functions(
    saved: tuple[Path, nn.Module], tmp_path: Path
) -> None:
    folder, model = saved
    assert run(["checkpoint", "convert", str(folder), "-o", str(tmp_path / "all.pt")]) == 0
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    other = GPT(blocks=1)
    optimizer = torch.optim.AdamW(other.parameters())
    set_model_state_dict(other, whole["model"])
    set_optimizer_state_dict(other, optimizer, whole["optimizer"])
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))
        assert torch.equal(optimizer.state[parameter]["exp_avg"], whole["optimizer"]["state"][name]["exp_avg"])


def test_safetensors_and_the_model_alone(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    folder, model = saved
    assert run(["checkpoint", "convert", str(folder), "-o", str(tmp_path / "m.safetensors")]) == 0
    assert run(["checkpoint", "convert", str(folder), "-o", str(tmp_path / "m.pt"), "--model-only"]) == 0
    plain = torch.load(tmp_path / "m.pt", weights_only=True)
    assert plain.keys() == model.state_dict().keys()
    written = load_file(tmp_path / "m.safetensors")
    assert plain.keys() - written.keys() == {"head.weight"}
    assert all(torch.equal(tensor, plain[name]) for name, tensor in written.items())


def test_a_folder_without_a_checkpoint_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["inspect", str(tmp_path)], ["convert", str(tmp_path / "x"), "-o", str(tmp_path / "y.pt")]):
        assert run(["checkpoint", *words]) == 1
        assert "holds none that is whole" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_a_command_is_told_the_line(
    saved: tuple[Path, nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoint", str(saved[0])]) == 2
    assert f"autopipe checkpoint inspect {saved[0]}" in " ".join(capsys.readouterr().err.split())
