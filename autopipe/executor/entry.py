"""The entry of a stage: received tensors join its autograd graph, and their gradients come out in one place."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Entry:
    """The tensors that entered a stage for one micro-batch.

    ``leaves`` stand for them at the end of the stage's autograd graph.
    """

    def __init__(self) -> None:
        self.leaves: tuple[Tensor, ...] = ()

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """Their gradients, in order, once the stage's backward has run; None where nothing came back."""
        return tuple(leaf.grad for leaf in self.leaves)

    def admit(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return tensors over the same memory that require gradients.

        They are neither leaves nor views, so that a stage may begin with an in-place operation.
        """
        self.leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors)
        # Autograd takes the result of _unsafe_view for a tensor of its own, with its own version.
        return tuple(torch.ops.aten._unsafe_view(leaf, leaf.shape) for leaf in self.leaves)
