"""The entry of a stage: received tensors join its autograd graph, and their gradients come out in one place."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from autopipe.stages.entered import entered


class Entry:
    """The tensors that entered a stage for one micro-batch.

    ``leaves`` stand for them at the end of the stage's autograd graph.
    """

    def __init__(self) -> None:
        self.leaves: tuple[Tensor, ...] = ()
        self._arrived: dict[int, Tensor] = {}

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """Their gradients, in order, once the stage's backward has run; None where nothing came back."""
        return tuple(self._arrived.get(i, leaf.grad) for i, leaf in enumerate(self.leaves))

    def admit(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return tensors with the same values and strides that require gradients.

        They are neither leaves nor views, so that a stage may begin with an in-place operation.
        """
        self.leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors)
        values = tuple(map(entered, self.leaves))
        for i, leaf in enumerate(self.leaves):
            # The node lives as long as the graph that now holds it.
            get_gradient_edge(leaf).node.register_prehook(self._receiver(i))
        return values

    def _receiver(self, i: int) -> Callable[[Any], Any]:
        """Return what takes a gradient as it comes.

        In its ``.grad`` it would be laid out like the leaf, and the next stage's kernels would add in another order.
        """

        def receive(gradients: tuple[Tensor | None, ...]) -> tuple[None]:
            if gradients[0] is not None:
                self._arrived[i] = gradients[0]
            return (None,)

        return receive
