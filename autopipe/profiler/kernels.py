"""Attention and dropout take the operators of a GPU though tensors lie on the CPU, so that they save the same bytes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autopipe.hardware.specification import Platform, Specification

FLASH_MULTIPLE = 8
FLASH_LARGEST_HEAD = 256
MASK_MULTIPLE = 16
_HALF = (torch.float16, torch.bfloat16)


def kernels_of(device: Specification) -> AbstractContextManager[Any]:
    """Return a context in which torch calls the operators that it runs on ``device``."""
    return nullcontext() if device.platform is Platform.CPU else GpuKernels(device)


class GpuKernels(TorchFunctionMode):
    """While it is active, calls of attention and dropout become those that ``device`` would run.

    Which attention that is follows from dtype, mask and head size, as in torch's own choice for CUDA: flash,
    else memory-efficient, else products and softmax.
    """

    def __init__(self, device: Specification) -> None:
        super().__init__()
        self._device = device
        self._whole = _with_names(
            functional.multi_head_attention_forward,
            scaled_dot_product_attention=self._attention,
            dropout=self._dropout,
            has_torch_function=lambda _: False,
        )

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` or what stands for it on the device."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in (functional.dropout, torch.dropout):
            return self._dropout(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._whole(*args, **kwargs)
        if func in _SWEEPS:
            # What runs inside a torch function is not seen by a mode, and a recomputing backward runs a forward.
            with self:
                return _SWEEPS[func](*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if inplace or not training or not 0 < p < 1 or not input.numel():
            return functional.dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if all(tensor.dim() == 4 for tensor in (query, key, value)):
            if self._takes_flash(query, key, value, attn_mask):
                return _flash(query, key, value, dropout_p, is_causal, scale)
            if self._takes_efficient(query, key, value, attn_mask, is_causal):
                return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return self._explicit(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    def _takes_flash(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
        return (
            mask is None
            and query.dtype in _HALF
            and self._is_at_least(8, 0)
            and query.shape[-1] == key.shape[-1] == value.shape[-1] <= FLASH_LARGEST_HEAD
        )

    def _takes_efficient(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> bool:
        supported = query.dtype in (torch.float32, torch.float16) or (
            query.dtype is torch.bfloat16 and self._is_at_least(8, 0)
        )
        return (
            supported
            and self._is_at_least(5, 0)
            and query.shape[1] == key.shape[1] == value.shape[1]
            and not (causal and mask is not None)
        )

    def _is_at_least(self, major: int, minor: int) -> bool:
        """Return whether the device's compute capability suffices; AMD's matrix devices run the same operators."""
        if self._device.platform is Platform.ROCM:
            return True
        return self._device.capability is not None and self._device.capability >= (major, minor)

    def _explicit(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
    ) -> Tensor:
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        if is_causal:
            allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
            mask = allowed if mask is None else mask.logical_and(allowed)
        # As torch's own: half of the scale on either side keeps half precision from overflowing.
        weights = (query * scale**0.5) @ (key.transpose(-2, -1) * scale**0.5)
        if mask is not None:
            weights = weights + _additive(mask, query.dtype)
        return self._dropout(weights.softmax(-1), dropout_p, dropout_p > 0) @ value


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float) -> Tensor:
    size = query.shape[-1]
    padding = -size % FLASH_MULTIPLE
    if padding:
        query, key, value = (functional.pad(tensor, (0, padding)) for tensor in (query, key, value))
    result = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return result[..., :size] if padding else result


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    bias = None
    if mask is not None:
        bias = _additive(mask, query.dtype)
        padding = -bias.shape[-1] % MASK_MULTIPLE
        if padding:
            bias = functional.pad(bias, (0, padding))[..., : mask.shape[-1]]
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    needs_grad = any(tensor.requires_grad for tensor in (query, key, value)) and torch.is_grad_enabled()
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
    )[0]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask as what is added to the weights."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask.logical_not(), float("-inf"))


def _with_names(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Return the same code with other meanings for some of the global names that it reads.

    torch's multi-head attention calls attention and dropout by such names, where no mode sees them.
    """
    assert isinstance(function, FunctionType)
    changed = FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__
    )
    changed.__kwdefaults__ = function.__kwdefaults__
    return changed


_backward = _with_names(torch.autograd.backward, has_torch_function=lambda _: False)


def _tensor_backward(tensor: Tensor, gradient: Tensor | None = None, **options: Any) -> None:
    _backward(tensor, gradient, **options)


_SWEEPS: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.backward: _tensor_backward,
    torch.autograd.backward: _backward,
}
