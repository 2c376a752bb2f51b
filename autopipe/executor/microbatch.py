"""A mini-batch is cut into micro-batches along the leading dimension of its tensors."""

import itertools
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
