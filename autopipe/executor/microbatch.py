"""A mini-batch is cut into micro-batches along the leading dimension of its tensors."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autopipe.errors import InputError


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
    for leaf in pytree.tree_leaves(trees):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            if leaf.shape[0] == 0:
                raise InputError("the mini-batch is empty: its first tensor has 0 samples. Skip empty batches.")
            return int(leaf.shape[0])
    raise InputError("the inputs hold no tensor with a batch dimension: pass the mini-batch as tensors (batch, ...).")


def cut(tree: Any, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Return one tree per micro-batch: tensors of the batch's leading size are narrowed, all else is passed whole."""
    leaves, form = pytree.tree_flatten(tree)
    batch = sum(sizes)
    parts = []
    for start, size in _spans(sizes):
        narrowed = [leaf.narrow(0, start, size) if _carries(leaf, batch) else leaf for leaf in leaves]
        parts.append(pytree.tree_unflatten(narrowed, form))
    return tuple(parts)


def signature(tree: Any) -> tuple[Any, ...]:
    """Return what the shapes inside the model can depend on: the form, tensor shapes and dtypes, plain values."""
    leaves, form = pytree.tree_flatten(tree)
    return (form, tuple(_describe(leaf) for leaf in leaves))


def to_device(tree: Any, device: torch.device) -> Any:
    """Return ``tree`` with its tensors on ``device``; copies do not block where memory is pinned."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), tree)


def _spans(sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield start, size
        start += size


def _carries(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (tuple(leaf.shape), leaf.dtype, leaf.requires_grad)
    return leaf if isinstance(leaf, (int, float, bool, str, type(None))) else id(leaf)
