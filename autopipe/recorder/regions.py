"""Regions of a run that change how torch computes, autocast and grad mode, are written down as enter and exit calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autopipe.recorder import glue


class Regions:
    """The regions that are open now; ``emit`` writes a node."""

    def __init__(self, emit: Callable[..., fx.Node]) -> None:
        self._emit = emit
        self._open: list[tuple[str, fx.Node, Any]] = []
        self._grad_enabled = torch.is_grad_enabled()

    @property
    def depth(self) -> int:
        """How many regions are open."""
        return len(self._open)

    def forget_after(self, depth: int) -> None:
        """Forget all but the first ``depth`` regions: their nodes are erased."""
        del self._open[depth:]
        self._grad_enabled = torch.is_grad_enabled()

    def is_followed(self) -> bool:
        """Return whether the grad mode is as it was written down last."""
        return torch.is_grad_enabled() == self._grad_enabled

    def enter_autocast(self, region: torch.autocast) -> None:
        """Write down the start of an autocast region."""
        arguments = (region.device, region.fast_dtype, region._enabled, region._cache_enabled)
        node = self._emit("call_function", glue.enter_autocast, arguments)
        self._open.append(("autocast", node, region))

    def exit_autocast(self, region: torch.autocast) -> None:
        """Write down the end of an autocast region, where it is the one opened last."""
        if not self._open or self._open[-1][2] is not region:
            return
        _, node, _ = self._open.pop()
        self._emit("call_function", glue.exit_autocast, (node,))

    def set_grad_mode(self, enabled: bool) -> None:
        """Turn the recording of gradients on or off, and write down where that starts or ends a region."""
        torch.set_grad_enabled(enabled)
        if enabled == self._grad_enabled:
            return
        self._grad_enabled = enabled
        if self._open and self._open[-1][0] == "grad" and self._open[-1][2] == enabled:
            _, node, _ = self._open.pop()
            self._emit("call_function", glue.exit_grad_mode, (node,))
        else:
            node = self._emit("call_function", glue.enter_grad_mode, (enabled,))
            self._open.append(("grad", node, not enabled))
