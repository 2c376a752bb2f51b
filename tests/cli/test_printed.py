"""What whole commands print: golden text, 80 columns, and terminals that are not UTF-8."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from autopipe.cli.doctor.command import _show
from autopipe.cli.doctor.findings import Finding, Level
from autopipe.cli.entry import run
from autopipe.cli.screen import Screen
from autopipe.documents.files import save
from autopipe.planner import simulate_plan
from tests.conftest import Golden
from tests.reporting import samples
from tests.reporting.page.plans import plan_of

LAYERS = """\
name,forward_ms,backward_ms,output_bytes,state_bytes,saved_bytes,inputs
embed,1,2,1600000,100,10,
left,2,4,1600000,200,20,embed
right,2,4,1600000,200,20,embed
join,1,2,0,100,10,left right
"""
COMMANDS = {
    "simulate": ["simulate", "plan.json"],
    "simulate_question": [
        "simulate",
        "--schedule",
        "1f1b",
        "--stages",
        "4",
        "--micro-batches",
        "8",
        "--times",
        "1,1,1",
    ],
    "schedule": ["schedule", "1f1b", "--stages", "4", "--micro-batches", "8"],
    "schedule_actions": ["schedule", "zb-v", "--stages", "2", "--micro-batches", "3", "--actions"],
    "partition_graph": ["partition", "layers.csv", "--format", "csv", "--gpus", "2"],
    "compare": ["profile", "--compare", "profile.json", "profile.json"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    save(plan_of(2, 4), "plan.json")
    save(samples.profile(), "profile.json")
    Path("layers.csv").write_text(LAYERS)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_should(
    name: str, folder: Path, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS[name]) == 0
    text = capsys.readouterr().out
    golden.check(f"{name}.txt", text)
    assert text.isascii()
    if name != "schedule_actions":
        assert max(map(len, text.splitlines())) <= 80


def test_what_the_doctor_finds_is_a_table_with_remedies(
    folder: Path, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = (
        Finding(Level.GOOD, "torch", "2.13.0, which is 2.9 or newer"),
        Finding(Level.WARNING, "threads", "2 processors and OMP_NUM_THREADS is not set", "export OMP_NUM_THREADS=1"),
        Finding(
            Level.FAULT,
            "shared memory",
            "/dev/shm has 64.00 MiB and the ranks of one machine pass messages through it",
            "docker run --shm-size 1g",
        ),
    )
    _show(findings, Screen(json=False, quiet=False))
    text = capsys.readouterr().out
    golden.check("doctor.txt", text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C"}])
def test_names_that_the_terminal_cannot_write_are_spelt_out(folder: Path, environment: dict[str, str]) -> None:
    plan = plan_of(2, 4)
    stages = tuple(msgspec.structs.replace(stage, layers=("d\u00e9but", "\u5c42[/x]")) for stage in plan.stages)
    save(msgspec.structs.replace(plan, model="mod\u00e8le", stages=stages), "plan.json")
    save(msgspec.structs.replace(samples.profile(), model="mod\u00e8le"), "profile.json")
    script = (
        "import sys; from autopipe.cli.entry import main\n"
        "compare = ['profile', '--compare', 'profile.json', 'profile.json']\n"
        "for words in (['simulate', 'plan.json'], ['simulate', 'plan.json', '--json'], ['report', 'plan.json'],\n"
        "              compare, ['simulate', 'missing-\u00e9.json']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: print(end.code, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, check=True
    )
    codes = [line for line in done.stdout.decode(errors="replace").splitlines() if line in ("0", "1", "70")]
    assert codes == ["0", "0", "0", "0", "1"], (done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    if "PYTHONIOENCODING" in environment:
        assert b"mod\\xe8le: 2 stages" in done.stdout
        assert done.stdout.replace(b"mod\xc3\xa8le", b"").isascii()


def test_the_json_of_a_command_is_utf_8_whatever_the_terminal(folder: Path) -> None:
    timeline = simulate_plan(plan_of(2, 4))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "autopipe", "simulate", "plan.json", "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout)["step_ns"] == timeline.step_ns
