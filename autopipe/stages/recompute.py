"""A recomputed layer keeps only what it reads, and computes what its backward needs again when that begins."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from autopipe.errors import InputError
from autopipe.stages.autocast import autocast_state
from autopipe.stages.entered import entered
from autopipe.stages.segment import Segment, insert_segments

Policy = Callable[..., Any] | Sequence[Any]
"""Which operations' results are kept: what `torch.utils.checkpoint.create_selective_checkpoint_contexts` takes."""


class Recomputed(Segment):
    """A layer that is recomputed in its backward.

    Notes
    -----
    The scheme of `torch.utils.checkpoint.checkpoint` with ``use_reentrant=False``: for what autograd saves in the
    forward it gets places, and the backward's first look into a place runs the layer again, which fills them all.
    It differs where a pipeline needs more:

    - a place keeps its tensor as long as autograd keeps the place, not until its first use: a backward in two
      parts (I, then W) reads many places twice and must recompute once;
    - buffers change once: the second run reads those that the first one changed as they were before it, and
      changes copies;
    - an input that the layer changes in place is kept as it was before.

    Random operations repeat by themselves: each draws from a seed of its own. Which buffers and inputs a layer
    changes is seen in its first forward under each combination of modes.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, *, layer: str, policy: Policy | None) -> None:
        super().__init__(root, graph, layer=layer)
        self.policy = policy
        self._changes: dict[tuple[bool, ...], tuple[frozenset[int], frozenset[int]]] = {}

    def forward(self, *values: Any) -> Any:
        """Return what the layer makes of ``values``."""
        if not torch.is_grad_enabled():
            return self.compute(*values)
        modes = tuple(part.training for part in self.parts)
        tensors = {i: value for i, value in enumerate(values) if isinstance(value, Tensor)}
        inputs, buffers = self._changes.get(modes, (frozenset(tensors), frozenset(range(len(self.buffers_read)))))
        before = {i: tensors[i].detach().clone() for i in inputs}
        kept = {i: self._buffer(i).detach().clone() for i in buffers}
        versions = {i: tensor._version for i, tensor in tensors.items()}
        run = _Run(self)
        with run.first(), torch.autograd.graph.saved_tensors_hooks(run.pack, run.unpack):
            result = self.compute(*values)
        if modes not in self._changes:
            inputs = frozenset(i for i, tensor in tensors.items() if tensor._version != versions[i])
            buffers = frozenset(i for i, tensor in kept.items() if not torch.equal(tensor, self._buffer(i)))
            self._changes[modes] = inputs, buffers
        run.keep(values, {i: before[i] for i in inputs}, {i: kept[i] for i in buffers})
        return result

    def _buffer(self, index: int) -> Tensor:
        owner, name = self.buffers_read[index]
        buffer = owner._buffers[name]
        assert buffer is not None
        return buffer

    @contextlib.contextmanager
    def holding(self, buffers: Mapping[int, Tensor]) -> Iterator[None]:
        """Let the layer read and change ``buffers``, by position in ``buffers_read``, in the place of its own."""
        own = {index: self._buffer(index) for index in buffers}
        self._hold(buffers)
        try:
            yield
        finally:
            self._hold(own)

    def _hold(self, buffers: Mapping[int, Tensor]) -> None:
        for index, tensor in buffers.items():
            owner, name = self.buffers_read[index]
            owner._buffers[name] = tensor


class _Place:
    """Stands in autograd's graph for a tensor that is computed again before it is read."""

    tensor: Tensor | None = None


class _Filled(Exception):
    """All places are filled: what is left of the layer need not run."""


class _Run:
    """One forward of a recomputed layer, with what is needed to repeat it."""

    def __init__(self, layer: Recomputed) -> None:
        self._layer = layer
        accelerator = torch.accelerator.current_accelerator()
        self._autocast = autocast_state(accelerator or torch.device("cpu"))
        self._places: list[weakref.ref[_Place]] = []
        self._looks: list[tuple[Any, ...]] = []
        self._is_filled = False
        self._contexts: tuple[Any, Any] = (contextlib.nullcontext(), contextlib.nullcontext())
        if layer.policy is not None:
            self._contexts = create_selective_checkpoint_contexts(layer.policy)

    def first(self) -> Any:
        """Return the context of the first run."""
        return self._contexts[0]

    def pack(self, tensor: Tensor) -> _Place:
        """Return a place for a tensor that autograd saves."""
        place = _Place()
        self._places.append(weakref.ref(place))
        self._looks.append(_look(tensor))
        return place

    def keep(self, values: Sequence[Any], before: Mapping[int, Tensor], buffers: Mapping[int, Tensor]) -> None:
        """Keep the layer's inputs, with those of ``before`` as they were, and its buffers as they were."""
        # Without their history: that belongs to the layers before.
        self._values = [value.detach() if isinstance(value, Tensor) else value for value in values]
        self._needs = [isinstance(value, Tensor) and value.requires_grad for value in values]
        self._buffers = buffers
        for index, tensor in before.items():
            self._values[index] = tensor
        self._versions = [value._version if isinstance(value, Tensor) else 0 for value in self._values]

    def unpack(self, place: _Place) -> Tensor:
        """Return the tensor of a place."""
        if not self._is_filled:
            self._repeat()
        assert place.tensor is not None
        return place.tensor

    def _repeat(self) -> None:
        """Run the layer again and fill all places that autograd still holds."""
        found = 0

        def fill(tensor: Tensor) -> Tensor:
            nonlocal found
            if found == len(self._places) or _look(tensor) != self._looks[found]:
                raise self._other("saves other tensors")
            place = self._places[found]()
            if place is not None:
                place.tensor = tensor.detach()
            found += 1
            if found == len(self._places):
                raise _Filled
            return tensor

        for value, version in zip(self._values, self._versions, strict=True):
            if isinstance(value, Tensor) and value._version != version:
                raise self._other("reads a value that a later layer has changed in place")
        values = [_entered(value, needs) for value, needs in zip(self._values, self._needs, strict=True)]
        with (
            self._layer.holding(self._buffers),
            self._autocast(),
            torch.enable_grad(),
            self._contexts[1],
            torch.autograd.graph.saved_tensors_hooks(fill, _as_is),
            contextlib.suppress(_Filled),
        ):
            self._layer.compute(*values)
        if found < len(self._places):
            raise self._other("saves fewer tensors")
        self._is_filled = True
        self._values, self._buffers = [], {}

    def _other(self, what: str) -> InputError:
        return InputError(
            f"layer {self._layer.layer} cannot be recomputed: its second run {what}, so gradients would be wrong. "
            "Take the layer out of the plan's recompute list, or make its forward depend on its inputs alone."
        )


def recompute_layers(
    module: fx.GraphModule, layers: Mapping[str, Sequence[str]], *, policy: Policy | None = None
) -> None:
    """Let a stage recompute ``layers``, given as name -> names of nodes, in its backward."""
    insert_segments(module, layers, lambda root, graph, layer: Recomputed(root, graph, layer=layer, policy=policy))


def _entered(value: Any, needs_gradient: bool) -> Any:
    """Return a kept input as the layer first saw it: no leaf, so that an in-place operation may come first."""
    if not needs_gradient:
        return value
    leaf = value.detach().requires_grad_()
    with torch.enable_grad():
        return entered(leaf)


def _as_is(tensor: Tensor) -> Tensor:
    return tensor


def _look(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device
