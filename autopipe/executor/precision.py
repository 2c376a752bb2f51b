"""The caller's autocast state is carried to the threads that run stages."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def autocast_state(device: torch.device) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return a function that opens the autocast region in which the caller stands, on ``device``'s type."""
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext
    dtype = torch.get_autocast_dtype(kind)
    cache = torch.is_autocast_cache_enabled()
    return lambda: torch.autocast(kind, dtype=dtype, cache_enabled=cache)
