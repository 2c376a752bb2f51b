"""The demo from end to end, with few steps: it runs, it learns, it proves."""

import re
from pathlib import Path

import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline


def test_the_demo_ends_with_equal_losses_and_gradients(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = run(["demo", "--steps", "6", "--keep", str(tmp_path)])
    text = capfd.readouterr().out
    assert code == 0, text
    assert re.search(r"^Link between two processes: [\d.]+ .s and \d+\.\d\d GB/s$", text, re.MULTILINE)
    assert "Stages, for one micro-batch" in text
    assert "Losses of all steps: equal, 6 of 6 bit for bit." in text
    assert re.search(r"Gradients of step 1: equal, (\d+) of \1 bit for bit\.", text)
    assert re.search(r"Gradients of step 6: equal, (\d+) of \1 bit for bit\.", text)
    assert "Exempt sums, which the pipeline may add in another order:" in text
    first, last = re.search(r"Loss ([\d.]+) in the first step, ([\d.]+) in step 6\.", text).groups()
    assert float(last) < float(first)
    for quantity in ("step", "rank 0 busy", "rank 1 busy", "rank 0 peak memory", "rank 1 peak memory"):
        (row,) = [line for line in text.splitlines() if re.match(rf"{quantity} +[\d.]+ [a-zA-Z]+ +[\d.]+ ", line)]
        assert row.endswith("%")
    profile = load(tmp_path / "profile.json", Profile)
    assert profile.link_latency_ns is not None
    assert profile.link_bytes_per_s is not None
    plan, timeline = load(tmp_path / "plan.json", Plan), load(tmp_path / "timeline.json", Timeline)
    assert len(plan.stages) == len(timeline.ranks) == 2
    assert all(rank.peak_bytes for rank in timeline.ranks)
