"""Runs a script under torchrun, kills its processes at random moments, and reads what it left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from autopipe.checkpoints.folder import whole_ones
from autopipe.checkpoints.saved import Saved

PATIENCE_S = 90.0


class Kill(NamedTuple):
    """One kill: after how many lines of losses, and whether a checkpoint was being written."""

    lines: int
    while_saving: bool


def torchrun(script: Path, *words: str, ranks: int = 2, restarts: int = 0) -> subprocess.Popen[str]:
    """Start ``script`` on ``ranks`` processes of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.Popen(
        [*launcher, "--max-restarts", str(restarts), str(script), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at_random(
    agent: "subprocess.Popen[str]", folder: Path, *, kills: int, draw: random.Random, longest_s: float, every: int = 0
) -> tuple[Kill, ...]:
    """Kill a random process of ``agent`` ``kills`` times, each within ``longest_s`` of its first step.

    Every ``every``-th kill (0: none) waits for the next checkpoint to be begun. After each kill every checkpoint
    that is whole is read.
    """
    done = []
    for number in range(kills):
        seen = _lines(folder)
        _wait(agent, lambda seen=seen: _lines(folder) > seen)
        time.sleep(draw.uniform(0.0, longest_s))
        if every and number % every == 0:
            _wait(agent, lambda: _is_saving(folder), pause_s=0.0)
            time.sleep(draw.uniform(0.0, 0.005))
        victim = draw.choice(_children(agent.pid))
        done.append(Kill(_lines(folder), _is_saving(folder)))
        os.kill(victim, signal.SIGKILL)
        _wait(agent, lambda victim=victim: victim not in _children(agent.pid))
        time.sleep(0.3)  # until torchrun has ended the others
        for path in whole_ones(folder):
            Saved(path).whole()
    return tuple(done)


def end(agent: "subprocess.Popen[str]") -> None:
    """End torchrun, if it still runs, and with it the processes that it started."""
    agent.terminate()
    try:
        agent.wait(timeout=40.0)  # it gives its processes 30 s
    except subprocess.TimeoutExpired:
        for process in (*_children(agent.pid), agent.pid):
            os.kill(process, signal.SIGKILL)
        agent.wait()


def losses_of(folder: Path) -> tuple[dict[int, str], list[int]]:
    """Return the last loss of each step, and the steps that a restart ran again to another loss."""
    found: dict[int, str] = {}
    changed = []
    for line in (folder / "losses.txt").read_text().splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].startswith(("0x", "-0x")):
            continue  # cut short by a kill
        if found.setdefault(int(words[0]), words[1]) != words[1]:
            changed.append(int(words[0]))
        found[int(words[0])] = words[1]
    return found, changed


def _lines(folder: Path) -> int:
    path = folder / "losses.txt"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _is_saving(folder: Path) -> bool:
    return any(path.name.startswith(".step-") for path in folder.iterdir())


def _children(parent: int) -> list[int]:
    """Return the processes that ``parent`` started and that run."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(parent)], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, state in rows if not state.startswith("Z")]


def _wait(agent: "subprocess.Popen[str]", happened: object, *, pause_s: float = 0.02) -> None:
    assert callable(happened)
    end = time.monotonic() + PATIENCE_S
    while not happened():
        if agent.poll() is not None:
            raise AssertionError(f"torchrun ended too early: {agent.stderr.read()[-3000:] if agent.stderr else ''}")
        if time.monotonic() > end:
            raise AssertionError(f"nothing happened for {PATIENCE_S:g} s")
        time.sleep(pause_s)
