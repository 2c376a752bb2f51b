"""Floating-point tensors travel between ranks in a smaller dtype, where the user asks for it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from autopipe.executor.wire import Spec, TensorSpec


def squeezed(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return ``tensor`` as it travels."""
    return tensor.to(dtype) if dtype is not None and _is_larger(tensor.dtype, dtype) else tensor


def squeezed_specs(specs: Sequence[Spec], dtype: torch.dtype | None) -> tuple[Spec, ...]:
    """Return what travels for values of ``specs``."""
    if dtype is None:
        return tuple(specs)
    return tuple(
        msgspec.structs.replace(spec, dtype=str(dtype).removeprefix("torch."))
        if isinstance(spec, TensorSpec) and _is_larger(getattr(torch, spec.dtype), dtype)
        else spec
        for spec in specs
    )


def unsqueezed(values: list[Any], specs: Sequence[Spec], dtype: torch.dtype | None) -> list[Any]:
    """Return what has arrived, where it travelled in ``dtype``, in the dtypes of ``specs``."""
    if dtype is None:
        return values
    return [
        value.to(getattr(torch, spec.dtype)) if isinstance(spec, TensorSpec) else value
        for value, spec in zip(values, specs, strict=True)
    ]


def _is_larger(one: torch.dtype, other: torch.dtype) -> bool:
    return one.is_floating_point and one.itemsize > other.itemsize
