"""A bucket is the gradients of some parameters in one flat tensor, as a communication hook sees it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Bucket:
    """What `torch.distributed.GradBucket` offers to hooks, made in Python.

    Making one takes the gradients off their parameters; `give_back` puts a tensor's parts in their place.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, index: int, is_last: bool) -> None:
        self._parameters = list(parameters)
        self._index, self._is_last = index, is_last
        self.present = [parameter.grad is not None for parameter in parameters]
        self._buffer = torch.cat([_flat(parameter) for parameter in parameters])
        for parameter in parameters:
            parameter.grad = None

    def index(self) -> int:
        """Return the bucket's number on its rank."""
        return self._index

    def is_last(self) -> bool:
        """Return whether no bucket of this step comes after it."""
        return self._is_last

    def buffer(self) -> Tensor:
        """Return the flat tensor, shape (elements of all gradients,)."""
        return self._buffer

    def set_buffer(self, tensor: Tensor) -> None:
        """Take another flat tensor."""
        self._buffer = tensor

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters, in order."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """Return the gradients, in order, as views of the flat tensor."""
        parts = self._buffer.split([parameter.numel() for parameter in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]

    def give_back(self, flat: Tensor, wanted: Sequence[bool]) -> None:
        """Make the parts of ``flat`` the gradients of those parameters that have one on some replica."""
        self._buffer = flat
        for parameter, gradient, is_wanted in zip(self._parameters, self.gradients(), wanted, strict=True):
            if is_wanted:
                parameter.grad = gradient


def _flat(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    gradient = parameter.grad.to_dense() if parameter.grad.layout is not torch.strided else parameter.grad
    return gradient.detach().reshape(-1)


def fill_buckets(parameters: Sequence[nn.Parameter], *, limit_bytes: int) -> list[list[nn.Parameter]]:
    """Return the parameters in order, in buckets of one dtype and at most ``limit_bytes`` (or one parameter)."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if not buckets or size > room or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            room = limit_bytes
        buckets[-1].append(parameter)
        room -= size
    return buckets
