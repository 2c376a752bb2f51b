"""The autocast state of one moment is opened again later or elsewhere: in a rank's thread, in a recomputed layer."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Region = Callable[[], contextlib.AbstractContextManager[Any]]


def autocast_state(device: torch.device) -> Region:
    """Return a function that opens the autocast state in which the caller stands, for the CPU and ``device``."""
    states = autocast_setting(device)
    if not any(is_on for _, is_on, _ in states):
        return contextlib.nullcontext
    cached = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def region() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            # Casts of weights are forgotten with the region, also where it is not the outermost: the optimizer may
            # change the weights before the next one opens.
            stack.callback(torch.clear_autocast_cache)
            for kind, is_on, dtype in states:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_on, cache_enabled=cached))
            yield

    return region


def autocast_setting(device: torch.device) -> tuple[tuple[str, bool, torch.dtype], ...]:
    """Return kind of device, whether autocast is on, and its dtype, for the CPU and ``device``."""
    kinds = dict.fromkeys(("cpu", device.type))
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)


@contextlib.contextmanager
def no_autocast(device: torch.device) -> Iterator[None]:
    """Turn autocast off, as it is where a plain loop calls ``backward()``."""
    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys(("cpu", device.type)):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
