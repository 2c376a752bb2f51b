"""One piece of a model is run by itself on values like those it gets in the chain, to count its work sweep by sweep."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autopipe.documents.work import Sweep, Work
from autopipe.profiler.work import Collected, WorkCounter, merged

_NO_PARTIAL_BACKWARD = "Checkpointing is not compatible"


class Form:
    """What a tensor is but for its values."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._stride, self._dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        self._device, self._requires_grad = tensor.device, tensor.requires_grad

    def like(self) -> Tensor:
        """Return a new tensor of this form, a leaf."""
        fresh = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)
        return fresh.requires_grad_(self._requires_grad)


@dataclass
class Noted:
    """A function that notes the forms of the arguments it was called with last."""

    function: Callable[..., Any]
    arguments: Any = None
    names: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        self.arguments, self.names = pytree.tree_map_only(Tensor, Form, (args, kwargs))
        return self.function(*args, **kwargs)

    def work(self) -> dict[Sweep, tuple[Work, ...]]:
        """Return what a call asks of a device: forward, full backward, and the backward to the arguments alone.

        The last is left out where a function inside cannot run a part of its backward.
        """
        args, kwargs = pytree.tree_map_only(Form, Form.like, (self.arguments, self.names))
        leaves = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        # A function may begin by writing to its argument, and a leaf must not be written to.
        args, kwargs = pytree.tree_map_only(Tensor, _received, (args, kwargs))
        found: dict[Sweep, tuple[Work, ...]] = {}

        def counted(sweep: Sweep, action: Callable[[], Any]) -> Any:
            collected: Collected = Counter()
            with WorkCounter(lambda: collected):
                result = action()
            found[sweep] = merged(collected)
            return result

        result = counted(Sweep.FORWARD, lambda: self.function(*args, **kwargs))
        ends = _differentiable(result)
        seeds = [torch.empty_like(end) for end in ends]
        try:
            counted(Sweep.INPUT_GRAD, lambda: _to_inputs(ends, leaves, seeds))
        except RuntimeError as error:
            if _NO_PARTIAL_BACKWARD not in str(error):
                raise
        counted(Sweep.BACKWARD, lambda: torch.autograd.backward(ends, seeds) if ends else None)
        return found


def _differentiable(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.requires_grad]


def _received(tensor: Tensor) -> Tensor:
    return torch.ops.aten._unsafe_view(tensor, tensor.shape) if tensor.requires_grad else tensor


def _to_inputs(ends: Sequence[Tensor], leaves: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
    if ends and leaves:
        torch.autograd.grad(ends, leaves, seeds, retain_graph=True, allow_unused=True)
