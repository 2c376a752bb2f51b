"""A model on the meta device has no values: its weights are used there, and small results are stood in for by zeros."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from autopipe.recorder.chance import Chance, TaggedDraws
from autopipe.recorder.example import map_tensors, tensors

LARGEST_STAND_IN = 2**16
_META = torch.device("meta")
_REAL = torch.device("cpu")


def is_weightless(model: nn.Module) -> bool:
    """Return whether some parameter or buffer of ``model`` has no memory."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@contextmanager
def fakes_on_meta(model: nn.Module) -> Iterator[None]:
    """Let tensors without memory of the meta device stand for the fake ones of ``model``, and put those back.

    A mode of fake tensors that is active is left meanwhile.
    """
    places: list[tuple[dict[str, Any], str, Any]] = []
    stand_ins: dict[int, Tensor] = {}
    with unset_fake_temporarily():
        try:
            for module in model.modules():
                tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
                for table in tables:
                    for name, value in table.items():
                        if isinstance(value, FakeTensor):
                            places.append((table, name, value))
                            table[name] = stand_ins.setdefault(id(value), on_meta(value))
            yield
        finally:
            for table, name, value in places:
                table[name] = value


def on_meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the meta device in the place of a fake one; others as they are."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    sizes = tuple(int(size) for size in tensor.shape)
    made = torch.empty_strided(sizes, tensor.stride(), dtype=tensor.dtype, device=_META)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def holds_fakes(model: nn.Module) -> bool:
    """Return whether ``model`` was built under a mode of fake tensors."""
    return any(isinstance(tensor, FakeTensor) for tensor in (*model.parameters(), *model.buffers()))


def stand_in(tensor: Tensor) -> Tensor:
    """Return zeros in the place of a tensor without memory, so that Python can compute with them; others as they are.

    A large tensor of real numbers stays without memory: nothing that shapes a program is made of it.
    """
    if not tensor.is_meta or (tensor.numel() > LARGEST_STAND_IN and tensor.is_floating_point()):
        return tensor
    zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device=_REAL)
    return _like(zeros, tensor)


def real_device(value: Any) -> Any:
    """Return ``value``, with the device that has memory in the place of the one that has none."""
    is_meta = (isinstance(value, torch.device) and value.type == _META.type) or (
        isinstance(value, str) and value == _META.type
    )
    return _REAL if is_meta else value


def weightless_device(value: Any) -> Any:
    """Return ``value``, with the device that has no memory in the place of the one that has some."""
    is_real = (isinstance(value, torch.device) and value.type == _REAL.type) or (
        isinstance(value, str) and value == _REAL.type
    )
    return _META if is_real else value


class Substitution:
    """Runs functions and leaves of a model without memory where their weights are, and their results elsewhere."""

    def __init__(self, model: nn.Module, chance: Chance) -> None:
        self._is_needed = is_weightless(model)
        self._chance = chance
        self._is_inside = False

    def call(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return what a torch function makes of its arguments."""
        if not self._is_needed or self._is_inside:
            return function(*args, **kwargs)
        args = type(args)(real_device(item) for item in args)
        kwargs = {name: real_device(item) for name, item in kwargs.items()}
        if any(tensor.is_meta for tensor in tensors((args, kwargs))):
            return self._without_memory(function, args, kwargs)
        result = function(*args, **kwargs)
        return real_device(result)

    def call_module(self, module: nn.Module, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return what ``function``, the call of the leaf ``module``, makes of its arguments."""
        own = (*module.parameters(), *module.buffers())
        if not self._is_needed or self._is_inside or (own and not any(tensor.is_meta for tensor in own)):
            return function(module, *args, **kwargs)
        return self._without_memory(function, (module, *args), kwargs)

    def _without_memory(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        copies: dict[int, tuple[Tensor, Tensor, int]] = {}

        def remove(tensor: Tensor) -> Tensor:
            if tensor.is_meta:
                return tensor
            if id(tensor) not in copies:
                copy = _like(tensor.detach().to(_META), tensor)
                copies[id(tensor)] = (tensor, copy, copy._version)
            return copies[id(tensor)][1]

        with self._inside(), TaggedDraws(self._chance):
            # A tensor without memory cannot be moved to where there is some.
            moved = [weightless_device(item) for item in map_tensors(args, remove)]
            named = {name: weightless_device(item) for name, item in map_tensors(dict(kwargs), remove).items()}
            result = function(*moved, **named)
        # What comes back as it was given keeps its identity.
        originals = {id(tensor): tensor for tensor in tensors((args, dict(kwargs))) if tensor.is_meta}
        originals |= {id(copy): tensor for tensor, copy, _ in copies.values()}
        for tensor, copy, version in copies.values():
            if copy._version != version:
                # What the function wrote is lost, that it did is not.
                tensor.detach().copy_(tensor.detach().clone())
        return real_device(map_tensors(result, lambda made: originals.get(id(made), stand_in(made))))

    @contextmanager
    def _inside(self) -> Any:
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return ``tensor`` with a gradient where ``other`` has one, as a result that may be written to."""
    if not other.requires_grad:
        return tensor
    return torch.ops.aten._unsafe_view(tensor.requires_grad_(), tensor.shape)
