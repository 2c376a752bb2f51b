import re
from pathlib import Path

import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import load
from autopipe.documents.timeline import Timeline

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
"""


def test_a_plan_runs_on_processes_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    called = ["--input", "8x64", "--target", "8x64", "--loss", "mse"]
    profile = [
        "profile",
        "model.py:build",
        *called,
        "--micro-batch",
        "2,4",
        "--budget",
        "1",
        "-o",
        "profile.json",
        "-q",
    ]
    assert run(profile) == 0
    assert (
        run(["partition", "profile.json", "--gpus", "2", "--batch", "8", "--replicas", "1", "-o", "plan.json", "-q"])
        == 0
    )
    assert run(["bench", "model.py:build", "plan.json", *called, "--steps", "3", "-o", "timeline.json"]) == 0
    text = capfd.readouterr().out
    for quantity in ("step", "rank 0 busy", "rank 1 busy", "rank 0 peak memory", "rank 1 peak memory"):
        assert re.search(rf"^{quantity} +[\d.]+ \w+ +[\d.]+ \w+ +[-+][\d.]+ %", text, flags=re.MULTILINE), quantity
    timeline = load("timeline.json", Timeline)
    assert timeline.source == "measured"
    assert len(timeline.ranks) == 2
