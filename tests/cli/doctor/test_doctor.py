"""Faults are planted as they happen: in the environment, in limits, in modules; only devices are made up."""

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from autopipe.cli.doctor.command import try_link
from autopipe.cli.doctor.facts import Device, Facts, gather_facts
from autopipe.cli.doctor.findings import Level, examine
from autopipe.cli.entry import run
from tests.processes import ProcessPool


def faults(facts: Facts, *peers: Facts) -> dict[str, tuple[str, str]]:
    """Return what is wrong: name of the finding -> what was found, what mends it."""
    found = [finding for finding in examine(facts, peers) if finding.level is Level.FAULT]
    assert all(finding.remedy for finding in found)
    return {finding.what: (finding.found, finding.remedy) for finding in found}


def test_this_machine_has_no_fault() -> None:
    assert faults(gather_facts({})) == {}


def test_gloo_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    found, remedy = faults(gather_facts({}))["backends"]
    assert "gloo is missing" in found
    assert "built with gloo" in remedy


def test_torch_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    assert faults(gather_facts({}))["torch"] == (
        "2.4.1+cpu is older than 2.9",
        "pip install --upgrade 'torch>=2.9'",
    )


def test_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "cannot be imported" in faults(gather_facts({}))["torch"][0]


def test_port_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        found, remedy = faults(gather_facts(variables))["rendezvous"]
    assert found.startswith(f"MASTER_PORT={port}: ")
    assert "another port" in remedy


def test_master_address_that_nothing_knows() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "29500"}
    assert "no-such-host.invalid" in faults(gather_facts(variables))["rendezvous"][0]


def test_rank_beyond_the_world() -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert faults(gather_facts(variables))["launcher"][0] == "RANK=3 with WORLD_SIZE=2"


def test_launcher_that_says_half() -> None:
    assert "MASTER_ADDR, MASTER_PORT not set" in faults(gather_facts({"RANK": "0", "WORLD_SIZE": "2"}))["launcher"][0]


def test_network_interface_that_is_not_there() -> None:
    found, remedy = faults(gather_facts({"GLOO_SOCKET_IFNAME": "nope0"}))["network"]
    assert found == "GLOO_SOCKET_IFNAME=nope0: no such interface"
    assert "ip link" in remedy


def test_two_processes_that_cannot_reach_each_other_are_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    finding = try_link(limit_s=60.0)
    assert finding.level is Level.FAULT
    assert "nope0" in finding.found  # not the launcher's summary
    left = subprocess.run(["pgrep", "-f", "autopipe.cli.doctor.link"], capture_output=True, text=True).stdout.split()
    assert left == []


def test_too_few_file_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        facts = gather_facts({})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found, remedy = faults(facts)["file descriptors"]
    assert found == "200 at most"
    assert remedy.startswith("ulimit -n")


def test_too_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs_result((4096, 4096, 4096, 16, 16, 0, 0, 0, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: usage)
    found, remedy = faults(gather_facts({}))["shared memory"]
    assert found == "64.00 KiB free"
    assert "--shm-size" in remedy


def test_temporary_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert "TMPDIR" in faults(gather_facts({}))["temporary files"][1]


def test_solver_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert "highspy" in faults(gather_facts({}))["solver"][1]


GPU = Device(name="some GPU", total_bytes=80 << 30, free_bytes=70 << 30)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"built_for": "CUDA 12.8", "devices": ()}, "devices"),
        ({"built_for": "CUDA 12.8", "devices": (GPU,), "backends": ("gloo",)}, "backends"),
    ],
)
def test_gpus_that_torch_cannot_use(change: dict[str, Any], what: str) -> None:
    assert what in faults(msgspec.structs.replace(gather_facts({}), **change))


def test_a_device_that_is_nearly_full_is_a_warning() -> None:
    full = msgspec.structs.replace(GPU, free_bytes=1 << 20)
    facts = msgspec.structs.replace(gather_facts({}), devices=(full,), backends=("gloo", "nccl"))
    assert [f.what for f in examine(facts) if f.level is Level.WARNING and f.what.startswith("device")] == ["device 0"]


def facts_of_rank(rank: int) -> bytes:
    version = torch.__version__
    try:
        if rank == 1:
            torch.__version__ = "2.10.0"
        facts = gather_facts({"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"})
    finally:
        torch.__version__ = version
    return msgspec.json.encode(facts)


def test_ranks_with_different_torch(processes: ProcessPool) -> None:
    ours, theirs = (msgspec.json.decode(one, type=Facts) for one in processes.run(facts_of_rank, 2))
    found, remedy = faults(ours, theirs)["ranks differ"]
    assert "2.10.0 on rank 1" in found
    assert remedy == "install the same torch everywhere"


def test_the_command_is_silent_but_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["doctor", "--no-links", "--json"])
    out, err = capsys.readouterr()
    findings = json.loads(out)
    assert code == int(any(finding["level"] == "fault" for finding in findings))
    assert err == ""
