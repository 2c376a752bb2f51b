"""The work of every operator is noted as a model runs, with or without memory: what kind it is, its FLOPs and bytes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from autopipe.documents.work import OperatorKind, Work
from autopipe.profiler.memory import storage_key, storages

Collected = Counter[Work]

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
_ROW_BYTES = 16
# Operators that give memory without touching it, or only read what describes a tensor.
_FREE = ("empty", "new_empty", "resize", "set_", "_efficientzerotensor", "record_stream")
_REDUCTIONS = ("norm", "softmax", "sum", "mean", "nll_loss", "mse_loss", "var", "std", "max", "min", "pool", "cumsum")
_INDEXING = ("embedding", "index", "gather", "scatter", "take", "topk", "sort")


class WorkCounter(TorchDispatchMode):
    """Notes the work of the operators that run while it is active, in the counter that ``where`` names.

    Parameters
    ----------
    where : callable
        Returns where the work of now belongs, or None if it is not to be noted.

    Notes
    -----
    FLOPs are torch's own count (`torch.utils.flop_counter`), bytes those of the tensors' shapes: neither depends
    on whether the tensors have memory.
    """

    def __init__(self, where: Callable[[], Collected | None]) -> None:
        super().__init__()
        self._where = where

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and note its work."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        collected = self._where()
        if collected is not None:
            work = work_of(function, args, kwargs, result)
            if work is not None:
                collected[work] += 1
        return result


def merged(collected: Collected) -> tuple[Work, ...]:
    """Return what was collected, equal calls in one entry, in the order in which they first ran."""
    return tuple(msgspec.structs.replace(work, calls=calls) for work, calls in collected.items())


def work_of(function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Work | None:
    """Return the work of one call of an operator; None if it moves nothing."""
    name = function._schema.name.partition("::")[2]
    if function.is_view or name.startswith(_FREE):
        return None
    inputs, outputs = _tensors((args, kwargs)), _tensors(result)
    if not function._schema.is_mutable:
        given = {storage_key(storage) for storage in storages(inputs)}
        if all(storage_key(storage) in given for storage in storages(outputs)):
            return None
    kind = _kind(name)
    return Work(
        kind=kind,
        dtype=_dtype([*inputs, *outputs]),
        flops=_flops(function._overloadpacket, args, kwargs, result),
        bytes=_traffic(kind, inputs, outputs),
        is_aligned=kind is not OperatorKind.MATMUL or all(_is_aligned(tensor) for tensor in inputs if tensor.dim() > 1),
    )


def _flops(operator: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    # torch 2.13 counts attention on GPUs alone; on a CPU its operators take the same tensors first.
    if operator is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if operator is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    count = flop_registry.get(operator)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


def _kind(name: str) -> OperatorKind:
    if name in _PRODUCTS:
        return OperatorKind.MATMUL
    if "attention" in name:
        return OperatorKind.ATTENTION
    if "convolution" in name:
        return OperatorKind.CONVOLUTION
    if any(word in name for word in _INDEXING):
        return OperatorKind.INDEXING
    if any(word in name for word in _REDUCTIONS):
        return OperatorKind.REDUCTION
    return OperatorKind.POINTWISE


def _traffic(kind: OperatorKind, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Return the bytes that are read and written; of a table, as much is read as comes out."""
    written = sum(_bytes(tensor) for tensor in outputs)
    read = [_bytes(tensor) for tensor in inputs]
    if kind is OperatorKind.INDEXING:
        read = [min(size, written) for size in read]
    return sum(read) + written


def _tensors(tree: Any) -> list[Tensor]:
    found = {id(leaf): leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)}
    return list(found.values())


def _bytes(tensor: Tensor) -> int:
    """Return the bytes that a tensor touches: what is expanded lies in memory once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(sizes) * tensor.element_size() if tensor.numel() else 0


def _dtype(tensors: Iterable[Tensor]) -> str:
    """Return the dtype of arithmetic: of the first tensor of real numbers, else of the first."""
    ordered = sorted(tensors, key=lambda tensor: not tensor.is_floating_point())
    return str(ordered[0].dtype).removeprefix("torch.").partition("_")[0]


def _is_aligned(tensor: Tensor) -> bool:
    return all(size * tensor.element_size() % _ROW_BYTES == 0 for size in tensor.shape[-2:])
