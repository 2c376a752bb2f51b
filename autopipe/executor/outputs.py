"""The outputs of micro-batches become those of the mini-batch."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def join(parts: Sequence[Any], sizes: Sequence[int], shares: Sequence[float], *, dim: int = 0) -> Any:
    """Return the output for the whole mini-batch, in the same structure.

    Tensors are joined along ``dim``, else their first dimension whose size is the micro-batch's; one number per
    micro-batch (a loss) counts by its share; what is equal in all is taken once. What fits none of these
    (sequences of different lengths, say) is a tuple with one item per micro-batch.

    Parameters
    ----------
    parts : sequence
        One output per micro-batch, in order.
    sizes : sequence of int
        Samples of each micro-batch.
    shares : sequence of float
        The share of each in the loss.
    dim : int
        In which dimension the model's output carries the batch.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return _joined(parts, sizes, shares, dim)
    if any(type(part) is not type(first) for part in parts):
        return tuple(parts)

    def column(read: Callable[[Any], Any]) -> Any:
        return join([read(part) for part in parts], sizes, shares, dim=dim)

    if isinstance(first, dict):
        items = {key: column(operator.itemgetter(key)) for key in first}
        return items if type(first) is dict else type(first)(items)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        fields = {name: column(operator.attrgetter(name)) for name in names}
        return dataclasses.replace(first, **fields)
    if isinstance(first, (tuple, list)) and all(len(part) == len(first) for part in parts):
        values = [column(operator.itemgetter(index)) for index in range(len(first))]
        return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)
    return first if all(part == first for part in parts) else tuple(parts)


def _joined(parts: Sequence[Any], sizes: Sequence[int], shares: Sequence[float], dim: int) -> Any:
    shapes = {part.dim() if isinstance(part, Tensor) else -1 for part in parts}
    if len(shapes) > 1:
        return tuple(parts)
    first = parts[0]
    if first.dim() == 0 and first.is_floating_point():
        counted = [part * share for part, share in zip(parts, shares, strict=True) if share > 0]
        return torch.stack(counted).sum() if counted else torch.zeros_like(first)
    for dimension in sorted(range(first.dim()), key=lambda dimension: dimension != dim):
        rest = {(*part.shape[:dimension], *part.shape[dimension + 1 :]) for part in parts}
        if len(rest) == 1 and all(part.shape[dimension] == size for part, size in zip(parts, sizes, strict=True)):
            return torch.cat(list(parts), dimension)
    same = all(part.shape == first.shape and torch.equal(part, first) for part in parts)
    return first if same else tuple(parts)
