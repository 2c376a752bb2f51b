"""``autopipe profile``: from files and packages to a document and a table."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from autopipe.cli.entry import run
from autopipe.documents.files import decode, load, save
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile, Source
from autopipe.profiler.device import device_name

MLP = ["tests.models:mlp", "--input", "4x64", "--target", "4x64", "--loss", "mse", "--budget", "0.2"]

SOURCE = """
import torch
from torch import nn

print("importing the model")

def ready():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(4, 8), None

class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        raise RuntimeError("this model is not ready")
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "models_to_profile.py"
    file.write_text(SOURCE)
    return str(file)


def test_json_puts_the_document_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", *MLP, "--micro-batch", "2,4", "--json"]) == 0
    captured = capsys.readouterr()
    profile = decode(captured.out, Profile)
    assert profile.micro_batches == (2, 4)
    assert profile.loss_name == "mse"
    assert "Layers, heaviest first" in captured.err


def test_a_factory_in_a_file_that_brings_its_example_needs_no_options(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "profile.json"
    assert run(["profile", f"{path}:ready", "--budget", "0.1", "-o", str(output)]) == 0
    captured = capsys.readouterr()
    assert "Layers, heaviest first" in captured.out
    assert f"Written to {output}" in captured.out
    # The user's own print does not mix with the command's output.
    assert "importing the model" not in captured.out
    assert "importing the model" in captured.err
    assert len(load(output, Profile).layers) >= 2


def test_quiet_says_nothing_when_all_is_well(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "tests.models:mlp", "--input", "2x64", "--budget", "0.1", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""


def test_integers_of_an_input_are_legal_indices_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "tests.models:GPT", "--input", "2x16:int64", "--target", "2x16:int64"]
    assert run([*words, "--loss", "cross_entropy", "--budget", "0.1", "--json", "--quiet"]) == 0
    assert decode(capsys.readouterr().out, Profile).loss_name == "cross_entropy"


def test_a_model_without_an_example_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "tests.models:mlp"]) == 2
    assert "add --input" in capsys.readouterr().err


def test_a_loss_without_its_target_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "tests.models:mlp", "--input", "2x64", "--loss", "mse"]) == 2
    assert "add --target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{path}:Raises", "--input", "2x8"], "this model is not ready"),
        (["{path}:absent", "--input", "2x8"], "has no 'absent'"),
        (["tests.models:mlp", "--input", "2x63"], "mat1 and mat2"),
        (["tests.models:mlp", "--input", "2x64", "--device", "warp"], "there is no device 'warp' here"),
        (["tests.models:mlp", "--input", "2x64", "--device", "h100"], "Near it: h200, h100-sxm"),
        (["tests.models:mlp", "--input", "2x63", "--device", "h100-sxm"], "[2, 63] X [64, 64].\n"),
        (
            ["tests.models:mlp", "--input", "2x9999999999999999999", "--device", "h100-sxm"],
            "no torch.float32 tensor of shape (2, 9999999999999999999) can be",
        ),
        (["tests.models:mlp", "--input", "2x64", "--device", "absent.json"], "cannot read the device in absent.json"),
        (
            ["tests.models:mlp", "--input", "2x64", "--device", "h100-sxm", "--calibrate", "absent.json"],
            "absent.json",
        ),
        (["tests.models:mlp", "--input", "2x64", "--calibrate", "absent.json"], "add --device"),
        (["tests.models:mlp", "--input", "2x64", "--optimizer", "adamx"], "torch.optim has no optimizer 'adamx'"),
        (["tests.models:mlp", "--input", "2x64", "--dtype", "float33"], "torch has no dtype 'float33'"),
    ],
)
def test_what_the_user_can_mend_is_a_sentence_and_no_file(
    words: list[str], sentence: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "profile.json"
    assert run(["profile", *(word.format(path=path) for word in words), "--budget", "0.1", "-o", str(output)]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not output.exists()


def test_granularity_and_leaves_are_those_of_capture(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "tests.models:GPT", "--input", "2x16:int64", "--budget", "0.1", "--json", "--quiet"]
    layers = []
    for options in ((), ("--granularity", "6"), ("--leaf", "Block")):
        assert run([*words, *options]) == 0
        layers.append([layer.name for layer in decode(capsys.readouterr().out, Profile).layers])
    assert len(layers[1]) < len(layers[0]) > len(layers[2])
    assert "blocks.0" in layers[2]


def test_the_same_command_measures_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", *MLP, "--micro-batch", "2", "--json"]) == 0
    first = decode(capsys.readouterr().out, Profile)
    assert run(["profile", *MLP, "--micro-batch", "2", "--json"]) == 0
    again = capsys.readouterr()
    assert decode(again.out, Profile) == first
    assert "measured before" in again.err
    assert run(["profile", *MLP, "--micro-batch", "2", "--json", "--fresh"]) == 0
    assert "measured before" not in capsys.readouterr().err


def test_an_interrupt_is_a_sentence_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from autopipe.profiler.rounds import Rounds

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "profile.json"
    with monkeypatch.context() as patched:
        patched.setattr(Rounds, "one_round", interrupted)
        assert run(["profile", *MLP, "-o", str(output)]) == 1
    assert "the same command goes on from there" in capsys.readouterr().err
    assert not output.exists()
    assert run(["profile", *MLP, "-o", str(output)]) == 0
    assert output.exists()


def test_autocast_is_heeded_without_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    saved = {}
    for option in ((), ("--autocast", "bfloat16")):
        assert run(["profile", *MLP, "--device", "h100-sxm", *option, "--json", "--quiet"]) == 0
        profile = decode(capsys.readouterr().out.encode(), Profile)
        saved[profile.autocast] = sum(layer.costs[0].saved_bytes for layer in profile.layers)
    assert saved.keys() == {None, "bfloat16"}
    assert saved[None] != saved["bfloat16"]


def test_autocast_and_fitting_sizes_are_in_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", *MLP, "--autocast", "bfloat16", "--micro-batch", "auto", "--json", "--quiet"]) == 0
    profile = decode(capsys.readouterr().out, Profile)
    assert profile.autocast == "bfloat16"
    assert profile.micro_batches[-1] == 2 ** (len(profile.micro_batches) - 1) * profile.micro_batches[0]


def test_two_profiles_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, size in zip(paths, ("2,4", "4"), strict=True):
        assert run(["profile", *MLP, "--micro-batch", size, "-o", path, "--quiet"]) == 0
    capsys.readouterr()
    assert run(["profile", "--compare", *paths]) == 0
    assert "B / A" in capsys.readouterr().out


def test_nothing_to_measure_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile"]) == 2
    assert "--compare" in capsys.readouterr().err


def test_a_profile_shows_itself_as_its_table(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert run(["profile", *MLP, "-o", str(path), "--quiet"]) == 0
    assert "Layers, heaviest first" in repr(load(path, Profile))


def test_a_wrong_shape_names_no_file_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ([], ["--device", "h100-sxm"]):
        assert run(["profile", "tests.models:mlp", "--input", "2x63", *device]) == 1
        assert "autopipe/" not in capsys.readouterr().err


@pytest.fixture
def here(tmp_path: Path) -> str:
    """A description of the machine at hand, in round figures."""
    figure = {"value": 10**10, "source": "assumption"}
    description = {
        "base": "a100-80-sxm",
        "name": "here",
        "platform": "cpu",
        "matches": [device_name(torch.device("cpu"))],
        "matrix_flops_per_s": {"float32": figure, "tfloat32": figure},
        "vector_flops_per_s": {"float32": figure},
        "bandwidth_bytes_per_s": figure,
    }
    file = tmp_path / "here.json"
    file.write_text(json.dumps(description))
    return str(file)


def test_a_measured_profile_calibrates_another_models_estimate(
    here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, told = str(tmp_path / "measured.json"), str(tmp_path / "told.json")
    assert run(["profile", *MLP, "-o", measured, "--quiet"]) == 0
    # Its device's memory is what this process may have, which a description of the machine need not be near.
    save(msgspec.structs.replace(load(measured, Profile), device_memory_bytes=None), measured)
    words = ["profile", "tests.models:CNN", "--input", "4x3x8x8", "--device", here, "-o", told]
    assert run([*words, "--calibrate", measured]) == 0
    assert "Times are calibrated" in capsys.readouterr().out
    calibrated = load(told, Profile)
    assert calibrated.source is Source.CALIBRATED
    assert run([*words, "--quiet"]) == 0
    plain = load(told, Profile)
    assert plain.source is Source.ROOFLINE
    assert [layer.costs[0].forward_ns for layer in plain.layers] != [
        layer.costs[0].forward_ns for layer in calibrated.layers
    ]
    assert run([*words, "--calibrate", told]) == 1
    assert "holds no measured times" in capsys.readouterr().err


def test_a_plan_for_a_cluster_in_short_form_carries_the_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, plan = str(tmp_path / "told.json"), str(tmp_path / "plan.json")
    words = ["tests.models:mlp", "--input", "4x64", "--device", "h100-sxm", "--micro-batch", "1,2,4", "-o", told]
    assert run(["profile", *words, "--quiet"]) == 0
    asked = ["partition", told, "--batch", "8", "-o", plan, "--cluster"]
    assert run([*asked, "2x2:h100-sxm:net=50GB/s"]) == 0
    assert "estimates by the roofline" in capsys.readouterr().out
    assert load(plan, Plan).source is Source.ROOFLINE
    assert run(["simulate", plan]) == 0
    assert "estimates by the roofline" in capsys.readouterr().out
    for cluster, sentence in (
        ("2x2:h100:net=50GB/s", "Near it: h200, h100-sxm"),
        ("2x2:h100-sxm", "nothing says how fast the way between them is"),
        ("0x2:h100-sxm", "has no devices"),
        ("h100-sxm", "is no group of machines"),
        ("2x2:h100-sxm:net=fast", "is no link"),
    ):
        assert run([*asked, cluster]) == 1
        said = capsys.readouterr().err
        assert sentence in said
        assert "Traceback" not in said
