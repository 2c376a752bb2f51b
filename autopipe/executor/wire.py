"""What a message looks like on the wire: a specification once per signature, then only tensors."""

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from autopipe.errors import InputError


class TensorSpec(msgspec.Struct, frozen=True, tag="tensor"):
    """Shape, dtype, whether a gradient comes back, and the order of the dimensions in memory, outermost first.

    The order is kept because kernels add in an order that depends on it.
    """

    shape: tuple[int, ...]
    dtype: str
    gradient: bool
    order: tuple[int, ...]

    def accepts(self, other: "Spec") -> bool:
        """Tell whether a tensor of ``other`` can be sent where this one is expected: only the order may differ."""
        return isinstance(other, TensorSpec) and msgspec.structs.replace(other, order=self.order) == self

    def takes(self, value: Any) -> bool:
        """Tell whether ``value`` is a tensor that can be sent where this one is expected."""
        return (
            isinstance(value, Tensor)
            and value.shape == self.shape
            and value.dtype is getattr(torch, self.dtype)
            and value.requires_grad == self.gradient
        )


class PlainSpec(msgspec.Struct, frozen=True, tag="plain"):
    """A value that is no tensor, carried by the specification itself."""

    kind: str
    text: str


Spec = TensorSpec | PlainSpec
_DECODER = msgspec.json.Decoder(tuple[Spec, ...] | None)
_PLAIN: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": lambda text: float.fromhex(text),
    "str": str,
    "bool": lambda text: text == "True",
    "NoneType": lambda text: None,
}
POISON = msgspec.json.encode(None)


def describe(values: list[Any], *, origin: str) -> tuple[Spec, ...]:
    """Return the specification of ``values``.

    Raises
    ------
    InputError
        If one is neither a tensor nor a number, string, bool or None; ``origin`` says which message it is.
    """
    return tuple(_describe(value, origin) for value in values)


def encode_specs(specs: tuple[Spec, ...]) -> bytes:
    """Return the bytes that `decode_specs` reads."""
    return msgspec.json.encode(specs)


def decode_specs(note: bytes) -> tuple[Spec, ...] | None:
    """Return the specification in ``note``; None if the sender could not make its values (it failed)."""
    return _DECODER.decode(note)


def allocate(specs: tuple[Spec, ...], device: torch.device) -> list[Any]:
    """Return a buffer for every tensor and the value itself for all else."""
    return [
        torch.empty_permuted(spec.shape, spec.order, dtype=getattr(torch, spec.dtype), device=device)
        if isinstance(spec, TensorSpec)
        else _PLAIN[spec.kind](spec.text)
        for spec in specs
    ]


def flat(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return the elements of ``tensor`` in memory order, outermost dimension first: a view where it is dense."""
    tensor = tensor.detach()
    if tensor.is_contiguous() and order == tuple(range(len(order))):
        return tensor
    return tensor.permute(order).contiguous()


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions by falling stride, also where there are gaps; as they come where elements overlap."""
    strides = tensor.stride()
    if any(stride == 0 and size > 1 for stride, size in zip(strides, tensor.shape, strict=True)):
        return tuple(range(tensor.dim()))
    return tuple(sorted(range(tensor.dim()), key=lambda d: (-strides[d], d)))


def _describe(value: Any, origin: str) -> Spec:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return TensorSpec(tuple(value.shape), dtype, value.requires_grad, _order(value))
    kind = type(value).__name__
    if kind not in _PLAIN:
        raise InputError(
            f"{origin} holds a {kind}, and only tensors, numbers, strings, bools and None travel between stages. "
            "Move the boundary, or make the module that produces it a leaf."
        )
    return PlainSpec(kind, value.hex() if isinstance(value, float) else str(value))
