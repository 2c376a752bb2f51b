"""Calls of torch functions are told apart: those to write down, those that ask for metadata, those that read values."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autopipe.recorder import glue
from autopipe.recorder.example import tensors
from autopipe.recorder.foreign import has_value_shape, operator_name
from autopipe.recorder.functions import function_name, method_name

_SHAPE_QUERIES = (
    "size dim shape ndim numel nelement ndimension stride __len__ is_contiguous storage_offset is_same_size itemsize "
    "nbytes"
)
_OTHER_QUERIES = (
    "dtype device layout requires_grad is_leaf grad_fn is_floating_point is_complex is_signed is_cuda is_cpu is_meta "
    "is_sparse is_sparse_csr is_quantized is_nested is_mkldnn is_mps is_xpu is_xla is_inference is_conj is_neg "
    "element_size get_device data_ptr _version name names has_names output_nr retains_grad __repr__ __format__ "
    "__hash__ type is_pinned is_shared _is_view _base is_vulkan is_ipu is_maia is_mtia is_hpu is_xpu volatile "
    "result_type can_cast is_tensor is_storage __dir__ dim_order __sizeof__ _is_zerotensor is_coalesced"
)
_QUERIES = f"{_SHAPE_QUERIES} {_OTHER_QUERIES}"
_FACTORIES = "arange range eye empty zeros ones rand randn randint full"
_TAKES_SIZES = (
    f"{_FACTORIES} view reshape expand repeat tile narrow split unflatten "
    "unfold new_empty new_zeros new_ones new_full pad interpolate"
)
_VALUE_SHAPED = "nms nonzero argwhere unique unique_consecutive masked_select bincount unique_dim"


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, kw_only=True)
class Query:
    """A call that asks a tensor for metadata: nothing to write down."""

    title: str
    of_shape: bool


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call to write down as an fx node ``op`` of ``target``; no target where a graph cannot name it."""

    title: str
    op: str = "call_function"
    target: Any = None
    refusal: str = "is no function that a graph can name"
    attribute: str | None = None
    returns_target: bool = False

    def args(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the node, given those of the call."""
        return (args[0], self.attribute) if self.attribute is not None else args

    def reads_values(self, result: Any) -> bool:
        """Return whether ``result`` gives Python something other than tensors."""
        return result is not None and not tensors(result) and result not in ((), [])

    def is_value_shaped(self, args: tuple[Any, ...], result: Any) -> bool:
        """Return whether the shape of what the call makes depends on the values of its arguments."""
        if has_value_shape(self.target):
            return True
        name = self.title.rpartition(".")[2]
        if name == "__getitem__":
            index = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
            bounds = [end for item in index if isinstance(item, slice) for end in (item.start, item.stop, item.step)]
            is_mask = any(isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) for item in index)
            return is_mask or any(isinstance(end, Tensor) for end in bounds)
        if name == "repeat_interleave":
            return len(args) == 1 or isinstance(args[1], Tensor)
        if name in _words(_TAKES_SIZES):
            sizes = args[1:] if args and isinstance(args[0], Tensor) and name not in _words(_FACTORIES) else args
            return bool(tensors(sizes[:1] if name in ("full", "new_full") else sizes))
        return name in _words(_VALUE_SHAPED) or (name == "where" and len(args) == 1)


def classify(function: Callable[..., Any], args: tuple[Any, ...]) -> Call | Query:
    """Return what kind of call ``function(*args)``, as a torch function mode sees it, is."""
    name = getattr(function, "__name__", str(function))
    descriptor = getattr(function, "__self__", None)
    if name in ("__get__", "__set__", "__delete__") and descriptor is not None:
        return _property(name, getattr(descriptor, "__name__", "an attribute"))
    if (operator_title := operator_name(function)) is not None:
        return Call(title=operator_title, target=function)
    if name in _words(_QUERIES):
        return Query(title=name, of_shape=name in _words(_SHAPE_QUERIES))
    if name == "__setitem__":
        return Call(title="Tensor.__setitem__", target=glue.set_item, returns_target=True)
    if name == "__getitem__":
        return Call(title="Tensor.__getitem__", target=operator.getitem)
    if (method := method_name(function)) is not None and args and isinstance(args[0], Tensor):
        return Call(title=f"Tensor.{method}", op="call_method", target=method)
    if (known := function_name(function)) is not None:
        return Call(title=known, target=function)
    if hasattr(Tensor, name) and getattr(Tensor, name) is function:
        return Call(title=f"Tensor.{name}", refusal="hands a tensor's values to Python")
    return Call(title=f"{getattr(function, '__module__', '') or 'torch'}.{name}")


def _property(access: str, name: str) -> Call | Query:
    if access == "__get__" and name in _words(_QUERIES):
        return Query(title=name, of_shape=name in _words(_SHAPE_QUERIES))
    if access == "__get__" and name in ("T", "mT", "H", "mH", "real", "imag", "data"):
        return Call(title=f"Tensor.{name}", target=getattr, attribute=name)
    return Call(title=f"Tensor.{name}", refusal="is read or set, which a graph cannot hold")
