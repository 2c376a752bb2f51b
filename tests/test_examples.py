"""The examples run as a user runs them."""

import ast
import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import autopipe
from autopipe.documents.files import load, save
from autopipe.documents.plan import Plan

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs an example in this process, and returns the lines that it printed."""

    def running(name: str, *words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return running


def losses_in(lines: list[str]) -> list[float]:
    return [float(line.split()[3]) for line in lines if line.startswith(("step", "epoch"))]


def test_each_example_is_short_and_says_how_it_is_run() -> None:
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) < 100, path.name
        assert path.name in (ast.get_docstring(ast.parse(text)) or ""), path.name


def test_the_training_example_learns_under_torchrun_and_saves_the_models_own_names(tmp_path: Path) -> None:
    script = runpy.run_path(str(EXAMPLES / "train_gpt.py"))
    model = script["GPT"](32, 2, 32)
    tokens, targets = script["draw_batch"](script["read_text"](), 8, 32)
    profile = autopipe.profile(
        model, (tokens,), target=targets, loss_fn=script["loss_fn"], micro_batches=(1, 2), budget_s=0.5
    )
    save(autopipe.partition(profile, gpus=2, batch_size=8, replicas=1), tmp_path / "plan.json")
    words = ["--plan", str(tmp_path / "plan.json"), "--save", str(tmp_path / "model.pt"), "--steps", "30"]
    sizes = ["--batch", "8", "--context", "32", "--width", "32", "--blocks", "2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*launcher, str(EXAMPLES / "train_gpt.py"), *words, *sizes],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    losses = losses_in(run.stdout.splitlines())
    assert len(losses) > 1
    assert losses[-1] < losses[0]
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


@pytest.mark.case(21)
def test_the_hugging_face_example_learns_with_the_models_own_loss_over_unequal_sentences(run) -> None:
    lines = run("train_hugging_face.py", "--threads", "2", "--steps", "40", "--batch", "8", "--length", "12")
    losses = losses_in(lines)
    assert len(losses) == 2
    assert float(lines[-1].split()[2].rstrip(",")) < losses[-1] < losses[0]


def test_the_cnn_example_learns_over_a_short_last_batch(run) -> None:
    words = ["--epochs", "3", "--pictures", "300", "--batch", "16", "--budget", "0.3"]
    lines = run("train_cnn.py", "--threads", "2", *words)
    losses = losses_in(lines)
    assert losses[-1] < 0.5 * losses[0]
    assert float(lines[-1].split("%")[0]) > 50  # of four classes


def test_the_unet_example_learns(run) -> None:
    lines = run("train_unet.py", "--threads", "2", "--steps", "25", "--batch", "8", "--width", "8", "--budget", "0.3")
    losses = losses_in(lines)
    assert losses[-1] < losses[0]
    assert lines[-1].startswith("overlap")


def test_the_encoder_decoder_example_learns(run) -> None:
    words = ["--steps", "30", "--batch", "8", "--width", "32", "--budget", "0.3"]
    losses = losses_in(run("train_encoder_decoder.py", "--threads", "2", *words))
    assert losses[-1] < losses[0]


def test_seventy_billion_parameters_are_planned_without_their_memory(run, tmp_path: Path) -> None:
    words = ["--length", "1024", "--cluster", "4x8:h100-sxm:net=50GB/s", "--batch", "64", "--time-limit", "0.5"]
    lines = run("plan_70b.py", *words, "-o", str(tmp_path / "plan.json"))
    assert lines[0] == "70.6 billion parameters"
    plan = load(tmp_path / "plan.json", Plan)
    assert plan.pipeline_size * plan.data_parallel_size == 32
    assert all(rank.peak_bytes <= rank.memory_limit_bytes for rank in plan.ranks)


def test_the_torchtitan_example_writes_settings_with_every_module_once(run, tmp_path: Path) -> None:
    run("export_torchtitan.py", "--blocks", "6", "--width", "256", "-o", str(tmp_path))
    settings = tomllib.loads((tmp_path / "torchtitan.toml").read_text())
    parts = settings["parallelism"]["module_fqns_per_model_part"]
    held = [name for part in parts for name in part]
    assert held == ["tok_embeddings", *(f"layers.{number}" for number in range(6)), "norm", "output"]


def test_the_resuming_example_goes_on_with_fewer_ranks(run, tmp_path: Path) -> None:
    words = ["--folder", str(tmp_path), "--budget", "0.2"]
    run("resume.py", *words, "--steps", "20")
    run("resume.py", *words, "--steps", "30", "--threads", "1")
    steps = [int(line.split()[0]) for line in (tmp_path / "losses.txt").read_text().splitlines()]
    assert steps == list(range(1, 31))


def test_the_lightning_style_example_learns(run) -> None:
    lines = run("train_lightning_style.py", "--threads", "2", "--epochs", "3")
    assert losses_in(lines)[-1] < losses_in(lines)[0]
    assert float(lines[-1].split()[-1]) < float(lines[0].split()[-1])
