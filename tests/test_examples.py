"""The examples run as a user runs them."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import torch

import autopipe
from autopipe.documents.files import save

EXAMPLES = Path(__file__).parent.parent / "examples"


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
    losses = [float(line.split()[3]) for line in run.stdout.splitlines() if line.startswith("step")]
    assert len(losses) > 1
    assert losses[-1] < losses[0]
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_the_hugging_face_example_learns_with_the_models_own_loss_over_unequal_sentences() -> None:
    """Case 21."""
    words = ["--threads", "2", "--steps", "40", "--batch", "8", "--length", "12"]
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_hugging_face.py"), *words],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    losses = [float(line.split()[3]) for line in run.stdout.splitlines() if line.startswith("step")]
    evaluated = run.stdout.splitlines()[-1]
    assert len(losses) == 2
    assert float(evaluated.split()[2].rstrip(",")) < losses[-1] < losses[0]
