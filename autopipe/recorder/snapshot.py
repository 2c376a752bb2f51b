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
    """Put back at the end whatever running ``model`` inside changed in it, and the random state.

    Notes
    -----
    Holds a copy of all parameters and buffers meanwhile: a forward may write to any of them.
    """
    modules = [(module, _attributes(module)) for module in model.modules()]
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers(), *_plain_tensors(model))}
    copies = [
        (tensor, tensor.detach().clone(), tensor.requires_grad, tensor.grad if tensor.is_leaf else None)
        for tensor in tensors.values()
    ]
    try:
        with random_state_kept():
            yield
    finally:
        for module, attributes in modules:
            _restore(module, attributes)
        with torch.no_grad():
            for tensor, copy, requires_grad, grad in copies:
                _restore_tensor(tensor, copy)
                if not tensor.is_leaf:
                    continue
                if tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
                tensor.grad = grad


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the random state of torch, its accelerators, Python and numpy back at the end."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices = list(range(torch.accelerator.device_count())) if accelerator is not None else []
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = numpy_random.get_state() if numpy_random is not None else None
    python_state = random.getstate()
    kind = accelerator.type if accelerator is not None else "cuda"
    with torch.random.fork_rng(devices=devices, device_type=kind):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy_random is not None:
                numpy_random.set_state(numpy_state)


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
    if tensor.device.type != "meta" and not torch.equal(tensor.detach(), copy):
        tensor.detach().copy_(copy)


def _plain_tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
