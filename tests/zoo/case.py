"""A case is a model to capture: how to build it, how to draw its arguments, and what its loss is."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that should be captured.

    ``draw`` gives the args and kwargs of a call with so many samples; a model whose ``returns_loss`` puts its
    own loss first in its output, and the loss of any other is the mean of all that it returns.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    draw: Callable[[int], Arguments]
    returns_loss: bool = False

    def loss(self, output: Any, target: Any = None) -> Tensor:
        """Return the loss of an output."""
        found = tuple(tensors(output))
        if self.returns_loss:
            return found[0]
        real = [torch.view_as_real(part) if part.is_complex() else part for part in found if part.requires_grad]
        return torch.stack([part.float().mean() for part in real]).mean()


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor of a structured value, in order."""
    return (part for _, part in parts(value) if isinstance(part, Tensor))


def parts(value: Any, path: str = "output") -> Iterator[tuple[str, Any]]:
    """Yield everything in a structured value that is no container, by its path."""
    if isinstance(value, Mapping):
        items = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        items = [(f"{path}.{index}", item) for index, item in enumerate(value)]
    elif is_dataclass(value) and not isinstance(value, type):
        items = [(f"{path}.{field.name}", getattr(value, field.name)) for field in fields(value)]
    else:
        yield path, value
        return
    for name, item in items:
        yield from parts(item, name)
