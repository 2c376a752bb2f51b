"""What was found becomes a list of findings: good or not, and what to do about it."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from autopipe.cli.doctor.facts import Facts
from autopipe.units import GIB, MIB, format_bytes

OLDEST_TORCH = (2, 9)
LEAST_SHARED_MEMORY = 256 * MIB
LEAST_DESCRIPTORS = 1024
LEAST_FREE = GIB


class Level(StrEnum):
    """How bad a finding is."""

    GOOD = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Finding(NamedTuple):
    """One thing that was looked at, and for what is not good, what mends it."""

    level: Level
    what: str
    found: str
    remedy: str = ""


def examine(facts: Facts, peers: Sequence[Facts] = ()) -> tuple[Finding, ...]:
    """Return the findings about one machine, and about how it differs from its ``peers``, the other ranks."""
    findings = [_torch(facts), *_backends(facts), *_devices(facts), _solver(facts), _threads(facts)]
    findings += [_shared_memory(facts), _descriptors(facts), _temporary(facts), _compiler(facts)]
    findings += _launcher(facts)
    findings += _peers(facts, peers)
    return tuple(findings)


def _torch(facts: Facts) -> Finding:
    if facts.torch is None:
        return Finding(
            Level.FAULT, "torch", f"cannot be imported ({facts.torch_error})", "pip install 'torch>=2.9' here"
        )
    version = tuple(int(part) for part in re.findall(r"\d+", facts.torch)[:2])
    if version < OLDEST_TORCH:
        return Finding(Level.FAULT, "torch", f"{facts.torch} is older than 2.9", "pip install --upgrade 'torch>=2.9'")
    return Finding(Level.GOOD, "torch", f"{facts.torch}, built for {facts.built_for}, Python {facts.python}")


def _backends(facts: Facts) -> list[Finding]:
    if facts.torch is None:
        return []
    found = ", ".join(facts.backends) or "none"
    if "gloo" not in facts.backends:
        remedy = "install a torch that is built with gloo (the ones on PyPI are): CPU ranks and notes travel over it"
        return [Finding(Level.FAULT, "backends", f"gloo is missing (found: {found})", remedy)]
    if facts.built_for.startswith(("CUDA", "ROCm")) and facts.devices and "nccl" not in facts.backends:
        return [Finding(Level.FAULT, "backends", "GPUs without NCCL", "install a torch that is built with NCCL")]
    return [Finding(Level.GOOD, "backends", found)]


def _devices(facts: Facts) -> list[Finding]:
    if facts.torch is None:
        return []
    if not facts.devices:
        if facts.built_for == "CPU":
            return [Finding(Level.GOOD, "devices", f"no accelerator; {facts.cores} CPU cores")]
        remedy = "check nvidia-smi or rocminfo, the driver, and CUDA_VISIBLE_DEVICES"
        return [Finding(Level.FAULT, "devices", f"torch is built for {facts.built_for} and sees no device", remedy)]
    findings = []
    for index, device in enumerate(facts.devices):
        free = f"{format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free"
        if device.free_bytes < LEAST_FREE:
            findings.append(
                Finding(Level.WARNING, f"device {index}", f"{device.name}: {free}", "end what else runs on it")
            )
        else:
            findings.append(Finding(Level.GOOD, f"device {index}", f"{device.name}: {free}"))
    return findings


def _solver(facts: Facts) -> Finding:
    if facts.solver_error:
        return Finding(Level.FAULT, "solver", facts.solver_error, "pip install --force-reinstall highspy pulp")
    return Finding(Level.GOOD, "solver", facts.solver)


def _threads(facts: Facts) -> Finding:
    if facts.threads is None:
        remedy = f"several CPU ranks on {facts.cores} cores get in each other's way: set OMP_NUM_THREADS"
        return Finding(Level.WARNING, "threads", "OMP_NUM_THREADS is not set", remedy)
    return Finding(Level.GOOD, "threads", f"{facts.threads} a rank on {facts.cores} cores")


def _shared_memory(facts: Facts) -> Finding:
    size = facts.shared_memory_bytes
    if size is None:
        return Finding(Level.GOOD, "shared memory", "no /dev/shm on this system")
    if size < LEAST_SHARED_MEMORY:
        remedy = "make room in /dev/shm, or start the container with --shm-size=1g (NCCL and data loaders need it)"
        return Finding(Level.FAULT, "shared memory", f"{format_bytes(size)} free", remedy)
    return Finding(Level.GOOD, "shared memory", f"{format_bytes(size)} free")


def _descriptors(facts: Facts) -> Finding:
    if facts.descriptors < LEAST_DESCRIPTORS:
        remedy = f"ulimit -n {8 * LEAST_DESCRIPTORS}: every pair of ranks needs a few"
        return Finding(Level.FAULT, "file descriptors", f"{facts.descriptors} at most", remedy)
    return Finding(Level.GOOD, "file descriptors", f"{facts.descriptors} at most")


def _temporary(facts: Facts) -> Finding:
    if facts.temporary_error:
        return Finding(Level.FAULT, "temporary files", facts.temporary_error, "set TMPDIR to a folder with room")
    return Finding(Level.GOOD, "temporary files", "can be written")


def _compiler(facts: Facts) -> Finding:
    if facts.compiler is None:
        remedy = "torch.compile needs one on CPUs: install g++, or leave compile out"
        return Finding(Level.WARNING, "C++ compiler", "none in the path", remedy)
    return Finding(Level.GOOD, "C++ compiler", facts.compiler)


def _launcher(facts: Facts) -> list[Finding]:
    findings = []
    given = facts.launcher
    rank, size = given.get("RANK"), given.get("WORLD_SIZE")
    numbers = {name: given[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in given}
    wrong = [f"{name}={value}" for name, value in numbers.items() if not value.isdigit()]
    if wrong:
        findings.append(Finding(Level.FAULT, "launcher", f"{wrong[0]} is no number", "start ranks with torchrun"))
    elif rank is not None and size is not None and int(rank) >= int(size):
        remedy = "ranks count from 0 to WORLD_SIZE - 1: start them with torchrun, or unset both"
        findings.append(Finding(Level.FAULT, "launcher", f"RANK={rank} with WORLD_SIZE={size}", remedy))
    elif numbers and set(given) < {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}:
        missing = ", ".join(sorted({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - set(given)))
        findings.append(Finding(Level.FAULT, "launcher", f"{missing} not set", "start ranks with torchrun"))
    if facts.address_error:
        remedy = "give a name or address that every machine can resolve, or mend /etc/hosts"
        found = f"MASTER_ADDR={given.get('MASTER_ADDR')}: {facts.address_error}"
        findings.append(Finding(Level.FAULT, "rendezvous", found, remedy))
    if facts.port_error:
        found = f"MASTER_PORT={given.get('MASTER_PORT')}: {facts.port_error}"
        findings.append(Finding(Level.FAULT, "rendezvous", found, "end what listens there, or choose another port"))
    findings += [
        Finding(Level.FAULT, "network", f"{name}: no such interface", "unset it, or name one that `ip link` shows")
        for name in facts.interface_errors
    ]
    return findings


def _peers(facts: Facts, peers: Sequence[Facts]) -> list[Finding]:
    findings = []
    for name, what in (("torch", "torch"), ("autopipe", "autopipe"), ("python", "Python"), ("built_for", "build")):
        for peer in peers:
            ours, theirs = getattr(facts, name), getattr(peer, name)
            if ours != theirs:
                found = f"{what} {ours} on rank {facts.rank} ({facts.host}), {theirs} on rank {peer.rank} ({peer.host})"
                findings.append(Finding(Level.FAULT, "ranks differ", found, f"install the same {what} everywhere"))
                break
    sizes = {len(peer.devices) for peer in (facts, *peers)}
    if len(sizes) > 1:
        found = f"machines with {' and '.join(map(str, sorted(sizes)))} devices"
        findings.append(Finding(Level.WARNING, "ranks differ", found, "profile under torchrun, so that plans know"))
    return findings
