"""A run whose processes are killed goes on, under torchrun, as if nothing had happened."""

import random
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.kills import kill_at_random, losses_of, torchrun

SCRIPT = Path(__file__).parent.parent / "examples" / "resume.py"


def test_losses_after_kills_are_those_of_a_run_that_nothing_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 600
    words = ["--steps", str(steps), "--budget", "0.2"]
    monkeypatch.setattr(sys, "argv", ["resume.py", "--folder", str(tmp_path / "calm"), *words])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    (tmp_path / "killed").mkdir()
    shutil.copy(tmp_path / "calm" / "plan.json", tmp_path / "killed")
    agent = torchrun(SCRIPT, "--folder", str(tmp_path / "killed"), *words, restarts=3)
    try:
        kills = kill_at_random(agent, tmp_path / "killed", kills=3, draw=random.Random(0), longest_s=0.3, every=3)
        _, said = agent.communicate(timeout=60)
    finally:
        agent.terminate()  # torchrun then ends its processes
        agent.wait(timeout=30)
    assert agent.returncode == 0, said
    losses, changed = losses_of(tmp_path / "killed")
    assert losses == losses_of(tmp_path / "calm")[0]
    assert changed == []
    assert len(losses) == steps
    assert all(kill.lines < steps for kill in kills)
