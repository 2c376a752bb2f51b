"""A mini-batch is cut into micro-batches along the leading dimension of its tensors."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autopipe.errors import InputError
from autopipe.recorder.example import map_tensors, tensors


def micro_batch_sizes(batch: int, micro_batches: int) -> tuple[int, ...]:
    """Return the samples of each micro-batch: as equal as can be, larger ones first, none empty.

    A batch of fewer samples than ``micro_batches`` gives one micro-batch per sample.
    """
    count = min(batch, micro_batches)
    return tuple(batch // count + (i < batch % count) for i in range(count))


def batch_of(*trees: Any) -> int:
    """Return the number of samples: the leading size of the first tensor that has one.

    Raises
    ------
    InputError
        If there is no such tensor, or it is empty.
    """
    for tensor in tensors(trees):
        if tensor.dim() > 0:
            if tensor.shape[0] == 0:
                raise InputError("the mini-batch is empty: its first tensor has 0 samples. Skip empty batches.")
            return int(tensor.shape[0])
    raise InputError("the inputs hold no tensor with a batch dimension: pass the mini-batch as tensors (batch, ...).")


def cut(tree: Any, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Return one tree per micro-batch: tensors of the batch's leading size are narrowed, all else is passed whole."""
    batch = sum(sizes)
    starts = itertools.accumulate(sizes, initial=0)
    return tuple(_narrowed(tree, batch, start, size) for start, size in zip(starts, sizes, strict=False))


class Inputs:
    """How the first stage's arguments are cut: by name, since some go whole to every micro-batch.

    Parameters
    ----------
    arguments : sequence of str
        Their names, in order.
    whole : sequence of str
        Those of tensors that do not carry the batch, whatever their leading size.
    """

    def __init__(self, arguments: Sequence[str], whole: Sequence[str]) -> None:
        self._arguments = tuple(arguments)
        self._whole = frozenset(whole)

    def batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of samples; raises as `batch_of` does."""
        return batch_of(self._boxed(args, kwargs))

    def cut(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: tuple[int, ...]
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]:
        """Return args and kwargs of each micro-batch."""
        parts = cut(self._boxed(args, kwargs), sizes)
        return tuple(
            (tuple(map(_unboxed, args)), {name: _unboxed(value) for name, value in kwargs.items()})
            for args, kwargs in parts
        )

    def _boxed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = itertools.chain(self._arguments, itertools.repeat(""))
        return (
            tuple(_Whole(value) if name in self._whole else value for name, value in zip(names, args, strict=False)),
            {name: _Whole(value) if name in self._whole else value for name, value in kwargs.items()},
        )


class _Whole:
    """Hides a value from `cut`."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _unboxed(value: Any) -> Any:
    return value.value if isinstance(value, _Whole) else value


def signature(tree: Any) -> tuple[Any, ...]:
    """Return what the shapes inside the model can depend on: shape, dtype and need of a gradient of each tensor."""
    return tuple((tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors(tree))


def to_device(tree: Any, device: torch.device) -> Any:
    """Return ``tree`` with its tensors on ``device``; copies do not block where memory is pinned."""
    return map_tensors(tree, lambda tensor: tensor.to(device, non_blocking=True))


def _narrowed(tree: Any, batch: int, start: int, size: int) -> Any:
    def narrow(tensor: Tensor) -> Tensor:
        return tensor.narrow(0, start, size) if tensor.dim() > 0 and tensor.shape[0] == batch else tensor

    return map_tensors(tree, narrow)
