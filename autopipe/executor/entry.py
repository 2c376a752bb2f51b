"""The entry of a stage: received tensors join its autograd graph, and their gradients come out in one place."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Entry:
    """Holds the gradients of the tensors that entered a stage for one micro-batch, once its backward has run.

    ``anchor`` is the leaf of the stage's graph behind all of them; None where nothing with a gradient entered.
    """

    def __init__(self) -> None:
        self.gradients: tuple[Tensor | None, ...] = ()
        self.anchor: Tensor | None = None

    def admit(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """Return tensors over the same memory that require gradients.

        They are neither leaves nor views, so that a stage may begin with an in-place operation.
        """
        if not tensors:
            return ()
        self.anchor = torch.empty(0, requires_grad=True)
        return _Admit.apply(self, self.anchor, *tensors)


class _Admit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, entry: Entry, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.entry = entry
        ctx.set_materialize_grads(False)
        return tuple(_alias(tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.entry.gradients = gradients
        return (None, None, *(None for _ in gradients))


def _alias(tensor: Tensor) -> Tensor:
    """Return a tensor over the same storage that autograd does not know as a view."""
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
