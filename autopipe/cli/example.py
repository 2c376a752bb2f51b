"""Example inputs are drawn at random, in the shapes and ranges that the command asks for."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.cli.values import TensorSpec
from autopipe.errors import InputError


def draw_all(
    specs: Iterable[TensorSpec], model: nn.Module, *, default: torch.dtype = torch.float32, seed: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments for ``model``; equal specs give equal values on every call."""
    generator = torch.Generator().manual_seed(seed)
    return _by_place(specs, lambda spec: draw(spec, model, generator, default=default))


def sketch_all(
    specs: Iterable[TensorSpec], *, default: torch.dtype = torch.float32
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments without memory or values.

    Raises
    ------
    InputError
        If there is no such dtype, or such a tensor cannot be.
    """

    def sketch(spec: TensorSpec) -> Tensor:
        dtype = default if spec.dtype is None else dtype_of(spec.dtype)
        try:
            return torch.empty(spec.shape, dtype=dtype, device="meta")
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"no {dtype} tensor of shape {spec.shape} can be: {reason}.") from None

    return _by_place(specs, sketch)


def _by_place(
    specs: Iterable[TensorSpec], make: Callable[[TensorSpec], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    specs = tuple(specs)
    args = tuple(make(spec) for spec in specs if spec.name is None)
    return args, {spec.name: make(spec) for spec in specs if spec.name is not None}


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype called ``name``.

    Raises
    ------
    InputError
        If there is none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"torch has no dtype {name!r}: write for example int64, float32, bfloat16 or bool.")
    return dtype


def draw(
    spec: TensorSpec, model: nn.Module, generator: torch.Generator, *, default: torch.dtype = torch.float32
) -> Tensor:
    """Return the tensor that ``spec`` asks for, of dtype ``default`` where it asks for none.

    Floating-point and complex values are normal; integers lie below ``spec.high``, by default below the
    smallest ``num_embeddings`` in ``model`` (2 if there is none), so that they are legal indices.

    Raises
    ------
    InputError
        If there is no such dtype, or such a tensor cannot be made.
    """
    dtype = default if spec.dtype is None else dtype_of(spec.dtype)
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(spec.shape, generator=generator, dtype=dtype)
        high = 2 if dtype is torch.bool else smallest_vocabulary(model) if spec.high is None else spec.high
        return torch.randint(high, spec.shape, generator=generator, dtype=dtype)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"no {dtype} tensor of shape {spec.shape} can be drawn: {reason}.") from None


def smallest_vocabulary(model: nn.Module) -> int:
    """Return the smallest ``num_embeddings`` of the embeddings in ``model``, 2 if it has none."""
    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    return min(sizes, default=2)
