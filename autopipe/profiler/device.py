"""The device that a model is measured on: which it is, its name and its memory."""

import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autopipe.errors import ProfileError

CPU_INFORMATION = Path("/proc/cpuinfo")
MEMORY_INFORMATION = Path("/proc/meminfo")


def device_of(model: nn.Module, inputs: Any) -> torch.device:
    """Return the one device that the model's parameters, buffers and the ``inputs`` are on.

    Raises
    ------
    ProfileError
        If they are on several, or on the meta device, where nothing can be timed.
    """
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    devices = sorted({str(tensor.device) for tensor in tensors if tensor.dim() > 0})
    if len(devices) > 1:
        raise ProfileError(
            f"the model and its example are spread over {', '.join(devices)}, and layers are measured on one "
            "device. Move both there: model.to(device), tensor.to(device)."
        )
    device = torch.device(devices[0]) if devices else torch.device("cpu")
    if device.type == "meta":
        raise ProfileError(
            "the model is on the meta device, where nothing runs and nothing can be timed. Build it on a real "
            "device, for example with model.to_empty(device='cpu')."
        )
    return device


def device_name(device: torch.device) -> str:
    """Return the name of ``device`` as its maker gives it, with the number of threads for a CPU."""
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"{_processor()}, {threads} {'thread' if threads == 1 else 'threads'}"
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(device)


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of memory that this process may have on ``device``.

    For an accelerator its memory, or the share of it that the process was given; for a CPU, whose memory ranks
    share, the limit of the process (``ulimit -d``), None where there is none.
    """
    if device.type in ("cuda", "xpu"):
        total = getattr(torch, device.type).get_device_properties(device).total_memory
        share = getattr(getattr(torch, device.type), "get_per_process_memory_fraction", None)
        return int(total if share is None else total * share(device))
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit == resource.RLIM_INFINITY else limit


def free_memory(device: torch.device) -> int | None:
    """Return about how many bytes this process can still get on ``device``, None where the system does not say."""
    limit = device_memory(device)
    if device.type in ("cuda", "xpu"):
        free, _ = getattr(torch, device.type).mem_get_info(device)
        return int(free) if limit is None else min(int(free), limit)
    try:
        lines = MEMORY_INFORMATION.read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return limit
    return free if limit is None else min(free, limit)


def _processor() -> str:
    try:
        lines = CPU_INFORMATION.read_text().splitlines()
    except OSError:
        return "cpu"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "cpu"
