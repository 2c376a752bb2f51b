"""A twin of a model has fake tensors in the place of parameters and buffers, so that it runs without memory."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autopipe.errors import ProfileError
from autopipe.recorder.example import map_tensors

_CPU = torch.device("cpu")


def fake_twin(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of ``model`` whose tensors are fakes on the CPU; trainable parameters have a gradient.

    The model may lie on any device, the meta device too; it is not changed, and no memory is taken.

    Raises
    ------
    ProfileError
        If the model cannot be copied.
    """
    fakes: dict[int, Any] = {}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
            if isinstance(tensor, Tensor) and id(tensor) not in fakes:
                fakes[id(tensor)] = _fake_member(tensor, mode)
    try:
        return copy.deepcopy(model, fakes)
    except Exception as error:
        raise ProfileError(
            f"{type(model).__name__} cannot be copied to run it without memory: {type(error).__name__}: {error}. "
            "Keep what cannot be copied (locks, files, generators) outside of the model, or measure it on a device."
        ) from error


def fake_like(value: Any, mode: FakeTensorMode) -> Any:
    """Return ``value`` with a fake on the CPU in the place of every tensor."""
    return map_tensors(value, lambda tensor: _fake(tensor, mode))


def _fake(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    with mode:
        if tensor.layout is not torch.strided:
            return torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, device=_CPU)
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU)


def _fake_member(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    fake = _fake(tensor, mode)
    if isinstance(tensor, nn.Parameter):
        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        if tensor.requires_grad:
            with mode:
                fake.grad = torch.empty_like(fake)
    return fake
