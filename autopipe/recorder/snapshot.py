"""A model is left as it was found: parameters, buffers, gradients, flags, hooks, attributes and random state."""

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (dict, OrderedDict, list, set)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Put back at the end whatever running ``model`` inside changed in it, and the random state."""
    snapshot = Snapshot(model)
    try:
        yield
    finally:
        snapshot.restore()


class Snapshot:
    """What a model and the random state were at one moment; holds a copy of all parameters and buffers.

    A forward may write to any of them, so each is copied, and compared when it is put back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, _attributes(module)) for module in model.modules()]
        tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers(), *_plain_tensors(model))}
        self._tensors = [
            (tensor, tensor.detach().clone(), tensor.requires_grad, tensor.grad if tensor.is_leaf else None)
            for tensor in tensors.values()
        ]
        self._random = _random_state()

    def restore(self) -> None:
        """Put everything back as it was; may be called many times."""
        for module, attributes in self._modules:
            _restore(module, attributes)
        for tensor, copy, requires_grad, grad in self._tensors:
            _restore_tensor(tensor, copy)
            if tensor.is_leaf:
                if tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
                tensor.grad = grad
        _set_random_state(self._random)


def _random_state() -> dict[str, Any]:
    """Return the random state of Python, of numpy where it is loaded, of torch and of its accelerators."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.accelerator.is_available():
        devices = torch.get_device_module(torch.accelerator.current_accelerator())
        state["devices"] = [devices.get_rng_state(index) for index in range(torch.accelerator.device_count())]
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
    if "devices" in state:
        devices = torch.get_device_module(torch.accelerator.current_accelerator())
        for index, device_state in enumerate(state["devices"]):
            devices.set_rng_state(device_state, index)


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return each attribute with a copy of its items where it is a container."""
    return {name: (value, _copy(value) if type(value) in _CONTAINERS else None) for name, value in vars(module).items()}


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else type(value)(value)


def _restore(module: nn.Module, attributes: dict[str, tuple[Any, Any]]) -> None:
    current = vars(module)
    for name in [name for name in current if name not in attributes]:
        del current[name]
    for name, (value, items) in attributes.items():
        if current.get(name) is not value:
            current[name] = value
        if type(value) in _CONTAINERS and _differs(value, items):
            value.clear()
            value.extend(items) if isinstance(value, list) else value.update(items)


def _differs(value: Any, items: Any) -> bool:
    if isinstance(value, dict):
        return list(value) != list(items) or any(value[key] is not items[key] for key in items)
    if isinstance(value, set):
        return bool(value != items)
    return len(value) != len(items) or any(a is not b for a, b in zip(value, items, strict=True))


def _restore_tensor(tensor: Tensor, copy: Tensor) -> None:
    with torch.no_grad():
        if tensor.device.type != "meta" and not torch.equal(tensor.detach(), copy):
            tensor.detach().copy_(copy)


def _plain_tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
