"""A mini-batch is cut into micro-batches along the dimension in which its tensors carry the batch."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.executor.request import MicroBatches
from autopipe.recorder.example import map_tensors, target_dim_of, tensors


def micro_batch_sizes(batch: int, micro_batches: int) -> tuple[int, ...]:
    """Return the samples of each micro-batch: as equal as can be, larger ones first, none empty.

    A batch of fewer samples than ``micro_batches`` gives one micro-batch per sample.
    """
    count = min(batch, micro_batches)
    return tuple(batch // count + (i < batch % count) for i in range(count))


def batch_of(*trees: Any, dim: int = 0, may_be_empty: bool = False) -> int:
    """Return the number of samples: the size in ``dim`` of the first tensor that has that dimension.

    Raises
    ------
    InputError
        If there is no such tensor, or it is empty and must not be.
    """
    for tensor in tensors(trees):
        if tensor.dim() > dim:
            if tensor.shape[dim] == 0 and not may_be_empty:
                raise InputError("the mini-batch is empty: its first tensor has 0 samples. Skip empty batches.")
            return int(tensor.shape[dim])
    raise InputError("the inputs hold no tensor with a batch dimension: pass the mini-batch as tensors (batch, ...).")


def cut(tree: Any, sizes: tuple[int, ...], dim: int = 0) -> tuple[Any, ...]:
    """Return one tree per micro-batch: tensors of the batch's size in ``dim`` are narrowed, all else is passed whole.

    Raises
    ------
    InputError
        If the tree is `MicroBatches` of another number.
    """
    if isinstance(tree, MicroBatches):
        if len(tree.items) != len(sizes):
            raise InputError(
                f"one MicroBatches of this step holds {len(tree.items)} items and another {len(sizes)}: give each "
                "of them one item per micro-batch."
            )
        return tree.items
    batch = sum(sizes)
    starts = itertools.accumulate(sizes, initial=0)
    return tuple(_narrowed(tree, dim, batch, start, size) for start, size in zip(starts, sizes, strict=False))


_PLAIN = (bool, int, float, complex, str, type(None))
Cutter = Callable[[Any, tuple[int, ...], int], tuple[Any, ...]]


class Inputs:
    """How the first stage's arguments are cut, by name, since some go whole to every micro-batch, and targets.

    Parameters
    ----------
    arguments : sequence of str
        Their names, in order.
    whole : sequence of str
        Those of tensors that do not carry the batch, whatever their size.
    dims : mapping of str to int, optional
        In which dimension arguments carry it where that is not their first.
    output_dim : int
        In which dimension the output does.
    target_dim : int, optional
        In which targets and weights do, where that is given.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        whole: Sequence[str],
        *,
        dims: Mapping[str, int] | None = None,
        output_dim: int = 0,
        target_dim: int | None = None,
    ) -> None:
        self._arguments = tuple(arguments)
        self._whole = frozenset(whole)
        self._dims = dict(dims or {})
        self.output_dim = output_dim
        self._target_dim = target_dim

    @staticmethod
    def of(graph: Graph) -> "Inputs":
        """Return how a recorded model's arguments and targets are cut."""
        return Inputs(
            graph.arguments,
            graph.whole_inputs,
            dims=graph.batch_dims,
            output_dim=graph.output_dim,
            target_dim=graph.target_dim,
        )

    def sizes(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], micro_batches: int, *, may_be_empty: bool = False
    ) -> tuple[int, ...]:
        """Return the samples of each micro-batch; raises as `batch_of` does."""
        named = [(self._dim(name), value) for name, value in self._named(args, kwargs) if name not in self._whole]
        for dim, value in named:
            if isinstance(value, MicroBatches):
                return tuple(batch_of(item, dim=dim) for item in value.items)
        # The first with such a tensor tells; without one, `batch_of` says so.
        dim, first = next(((d, v) for d, v in named if any(t.dim() > d for t in tensors(v))), (0, None))
        return micro_batch_sizes(batch_of(first, dim=dim, may_be_empty=may_be_empty), micro_batches)

    def cut_target(self, tree: Any, sizes: tuple[int, ...], *, cutter: Cutter = cut) -> tuple[Any, ...]:
        """Return the part of a tree of targets or weights for each micro-batch.

        It is cut along the dimension given, else along the output's where it has as many samples there, and otherwise
        along its first.

        Raises
        ------
        InputError
            If there are not as many as inputs, or more than one dimension could be meant.
        """
        if isinstance(tree, MicroBatches) or not tensors(tree):
            return cutter(tree, sizes, 0)
        samples = sum(sizes)
        dim = target_dim_of(tree, samples, given=self._target_dim, output_dim=self.output_dim)
        found = batch_of(tree, dim=dim, may_be_empty=not sizes)
        if found != samples:
            raise InputError(f"{found} targets came with {samples} inputs: pass as many of each.")
        return cutter(tree, sizes, dim)

    def cut(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: tuple[int, ...], *, cutter: Cutter = cut
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]:
        """Return args and kwargs of each micro-batch, or of each part that ``cutter`` makes."""
        count = len(sizes)
        columns = [
            (value,) * count
            if name in self._whole and not isinstance(value, MicroBatches)
            else cutter(value, sizes, self._dim(name))
            for name, value in self._named(args, kwargs)
        ]
        rows = list(zip(*columns, strict=True)) if columns else [()] * count
        return tuple((row[: len(args)], dict(zip(kwargs, row[len(args) :], strict=True))) for row in rows)

    def _dim(self, name: str) -> int:
        return self._dims.get(name, 0)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        names = itertools.chain(self._arguments, itertools.repeat(""))
        return [*zip(names, args, strict=False), *kwargs.items()]


def signature(tree: Any) -> tuple[Any, ...]:
    """Return what the values inside the model can depend on beside the values of tensors.

    That is shape, dtype and need of a gradient of each tensor, and every number, string and None.
    """
    return tuple(
        (tuple(leaf.shape), leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
        for leaf in _leaves(tree)
    )


def is_ready(value: Any, device: torch.device) -> bool:
    """Tell whether `to_device` has nothing to do: a tensor that is there, or a plain value.

    Containers are never ready: the model or the loss may change them, so it gets its own.
    """
    return value.device == device if isinstance(value, Tensor) else isinstance(value, _PLAIN)


def to_device(tree: Any, device: torch.device) -> Any:
    """Return ``tree`` with its tensors on ``device``; copies from the CPU to an accelerator do not block."""

    def moved(tensor: Tensor) -> Tensor:
        if device.type != "cpu" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    return map_tensors(tree, moved)


def _narrowed(tree: Any, dim: int, batch: int, start: int, size: int) -> Any:
    def narrow(tensor: Tensor) -> Tensor:
        return tensor.narrow(dim, start, size) if tensor.dim() > dim and tensor.shape[dim] == batch else tensor

    return map_tensors(tree, narrow)


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the tensors and plain values in a tree's containers, in order."""
    if isinstance(tree, (Tensor, *_PLAIN)):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _leaves(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _leaves(item)
    elif dataclasses.is_dataclass(tree):
        for field in dataclasses.fields(tree):
            yield from _leaves(getattr(tree, field.name))
