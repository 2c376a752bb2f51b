"""What is found on this machine: versions, backends, devices, limits, the launcher's variables."""

import contextlib
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Mapping

import msgspec

from autopipe import __version__

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator of this machine."""

    name: str
    total_bytes: int
    free_bytes: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that `examine` looks at; None where something could not be found out.

    ``torch_error`` says why torch cannot be imported, ``solver_error`` why the solver solves nothing,
    ``address_error`` why MASTER_ADDR cannot be resolved, ``port_error`` why MASTER_PORT cannot be listened on,
    ``interface_errors`` which network interfaces named in the environment are not there.
    """

    rank: int = 0
    host: str
    autopipe: str
    python: str
    torch: str | None
    torch_error: str = ""
    built_for: str = "CPU"
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    cores: int
    threads: int | None
    shared_memory_bytes: int | None
    descriptors: int
    temporary_error: str = ""
    solver: str = ""
    solver_error: str = ""
    compiler: str | None = None
    launcher: dict[str, str] = {}
    address_error: str = ""
    port_error: str = ""
    interface_errors: tuple[str, ...] = ()


def gather_facts(environment: Mapping[str, str] = os.environ) -> Facts:
    """Look at this process and machine; nothing is changed and nothing is sent."""
    torch, torch_error, built_for, backends, devices = _torch()
    solver, solver_error = _solver()
    address_error, port_error = _rendezvous(environment)
    return Facts(
        rank=int(environment["RANK"]) if environment.get("RANK", "").isdigit() else 0,
        host=socket.gethostname(),
        autopipe=__version__,
        python=platform.python_version(),
        torch=torch,
        torch_error=torch_error,
        built_for=built_for,
        backends=backends,
        devices=devices,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=_number(environment.get("OMP_NUM_THREADS")),
        shared_memory_bytes=_shared_memory(),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        temporary_error=_temporary(),
        solver=solver,
        solver_error=solver_error,
        compiler=shutil.which(environment.get("CXX", "g++")) or shutil.which("clang++"),
        launcher={name: environment[name] for name in LAUNCHER if name in environment},
        address_error=address_error,
        port_error=port_error,
        interface_errors=_interfaces(environment),
    )


def _torch() -> tuple[str | None, str, str, tuple[str, ...], tuple[Device, ...]]:
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        return None, f"{type(error).__name__}: {error}", "", (), ()
    built_for = "CPU"
    for name, version in (("CUDA", torch.version.cuda), ("ROCm", getattr(torch.version, "hip", None))):
        if version:
            built_for = f"{name} {version}"
    backends: tuple[str, ...] = ()
    if dist.is_available():
        known = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available}
        backends = tuple(name for name, there in known.items() if there())
    devices = []
    if torch.accelerator.is_available():
        for index in range(torch.accelerator.device_count()):
            free, total = torch.accelerator.get_memory_info(index)
            devices.append(Device(name=_device_name(index), total_bytes=total, free_bytes=free))
    return str(torch.__version__), "", built_for, backends, tuple(devices)


def _device_name(index: int) -> str:
    import torch

    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    name: str = torch.get_device_module(kind).get_device_name(index)
    return name


def _solver() -> tuple[str, str]:
    """Solve a programme of one variable with the planner's own engine."""
    try:
        import highspy
        import pulp

        from autopipe.planner.engine import run_highs

        model = pulp.LpProblem("doctor", pulp.LpMinimize)
        x = model.add_variable("x", lowBound=0, upBound=9, cat="Integer")
        model += x
        model += x >= 3
        answer = run_highs(model, time_limit_s=10.0)
        if answer is None or round(x.value()) != 3:
            return "", f"it found {x.value()} as the least whole number above 3"
        return f"HiGHS {getattr(highspy, '__version__', '')}".strip(), ""
    except Exception as error:
        return "", f"{type(error).__name__}: {error}"


def _rendezvous(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return what is wrong with the launcher's address and with its port, which its first rank must listen on."""
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    address_error = port_error = ""
    if address is not None:
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            address_error = str(error)
    listens = environment.get("RANK", "0") == "0" and "TORCHELASTIC_RUN_ID" not in environment
    if port is not None and listens:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", int(port)))
            except (OSError, ValueError, OverflowError) as error:
                port_error = str(error)
    return address_error, port_error


def _interfaces(environment: Mapping[str, str]) -> tuple[str, ...]:
    there = {name for _, name in socket.if_nameindex()}
    missing = []
    for variable in INTERFACES:
        names = environment.get(variable, "").lstrip("^=").split(",")
        missing += [f"{variable}={name}" for name in names if name and not any(one.startswith(name) for one in there)]
    return tuple(missing)


def _shared_memory() -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return None


def _temporary() -> str:
    try:
        with tempfile.NamedTemporaryFile():
            return ""
    except OSError as error:
        return str(error)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
