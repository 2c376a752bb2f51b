"""Some operators return a small tensor in large memory, which tensors without memory would hide."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ELEMENTWISE = 0


class KeptMemory(TorchDispatchMode):
    """While it is active, results of operators on fake tensors lie in as much memory as real ones do.

    Notes
    -----
    `mse_loss` and `smooth_l1_loss` make room for a loss per element, on any device, and then write their mean or
    sum into it: the scalar keeps all of the room alive (seen in torch 2.13). Fake tensors get a decomposition.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.mse_loss.default, torch.ops.aten.smooth_l1_loss.default):
            reduction = args[2] if len(args) > 2 else (kwargs or {}).get("reduction", 1)
            if reduction != _ELEMENTWISE:
                return _in_room_for(torch.broadcast_shapes(args[0].shape, args[1].shape), result)
        return result


def _in_room_for(shape: torch.Size, result: Tensor) -> Tensor:
    room: Tensor = torch.empty(shape, dtype=result.dtype, device=result.device)
    return room.resize_(result.shape)
