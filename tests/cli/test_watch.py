import threading
import time
from pathlib import Path

import msgspec
import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import save
from autopipe.planner import simulate_plan
from tests.reporting.page.plans import plan_of


def test_a_run_is_shown_each_time_that_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, file = plan_of(2, 4), tmp_path / "timeline.json"
    save(plan, tmp_path / "plan.json")
    timeline = simulate_plan(plan)
    started = threading.Event()

    def train() -> None:
        started.wait()
        for factor in (2, 3):
            time.sleep(0.3)
            save(msgspec.structs.replace(timeline, source="measured", step_ns=factor * timeline.step_ns), file)

    writer = threading.Thread(target=train)
    writer.start()
    started.set()
    assert run(["watch", str(file), "--plan", str(tmp_path / "plan.json"), "--updates", "2"]) == 0
    writer.join()
    out = capsys.readouterr().out
    assert out.startswith("Waiting for")
    first, second = out.index("measured step of 75.00 ms"), out.index("measured step of 112.50 ms")
    assert first < second
    assert out.count("Predicted and measured") == 2
    assert "-66.7 %" in out


def test_a_file_that_is_no_timeline_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(plan_of(2, 4), tmp_path / "plan.json")
    assert run(["watch", str(tmp_path / "plan.json")]) == 1
    assert "is not a valid autopipe.timeline document" in capsys.readouterr().err
