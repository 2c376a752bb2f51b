"""The few functions and modules of ours that a recorded graph calls where torch has none that fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import has_side_effect

from autopipe.errors import InputError
from autopipe.recorder.foreign import resolve_autograd_function
from autopipe.recorder.objects import resolve_object_class, with_attributes

FLAG = "autopipe_training"
ATTRIBUTES = "autopipe_attributes"
METHODS = "autopipe_methods"


def is_own(node: fx.Node) -> bool:
    """Return whether a node calls a module of ours, which is none of the model's: a flag, a reader or a method."""
    if node.op != "call_module":
        return False
    return str(node.target).rpartition(".")[2] == FLAG or is_reader(node) or is_method_call(node)


def is_reader(node: fx.Node) -> bool:
    """Return whether a node reads what a leaf left on an attribute; its argument is the node that calls the leaf."""
    return node.op == "call_module" and str(node.target).startswith(f"{ATTRIBUTES}.")


def is_method_call(node: fx.Node) -> bool:
    """Return whether a node calls a method of the model itself."""
    return node.op == "call_module" and str(node.target).startswith(f"{METHODS}.")


class MethodCall(nn.Module):
    """Calls the method ``name`` of ``owner``, the model itself, in the mode that ``train()`` and ``eval()`` set.

    The method uses no parameters or buffers, so that it can run wherever its arguments are.
    """

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self._owner = (owner,)
        self._name = name
        self.training = owner.training

    def train(self, mode: bool = True) -> "MethodCall":
        """Set the mode of this module and of the owner (not of the owner's children)."""
        self.training = mode
        self._owner[0].training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the method makes of its arguments."""
        return getattr(self._owner[0], self._name)(*args, **kwargs)


class AttributeReader(nn.Module):
    """Returns what a leaf has left on the attribute ``name`` of ``owner``, the leaf itself or a module in it.

    It is called with the leaf's result, so that it reads after the leaf has run; `find_cuts` keeps the two together.
    """

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self._owner = (owner,)
        self._name = name

    def forward(self, after: Any) -> Any:
        """Return the attribute as it is now."""
        return getattr(self._owner[0], self._name)


class TrainingFlag(nn.Module):
    """Returns whether ``owner``, an open module of the model, is in training mode; ``train()`` and ``eval()`` set it.

    A recorded graph has no call of an open module, so what depends on its mode reads it here. The owner is
    no submodule of the flag: its parameters belong to the leaves that the graph calls.
    """

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self._owner = (owner,)
        self.training = owner.training

    def train(self, mode: bool = True) -> "TrainingFlag":
        """Set the mode of the flag and of its owner (not of the owner's children: the graph holds them itself)."""
        self.training = mode
        self._owner[0].training = mode
        return self

    def forward(self) -> bool:
        """Return the owner's mode."""
        return self._owner[0].training


def choose(training: bool, if_training: Any, otherwise: Any) -> Any:
    """Return ``if_training`` in training mode and ``otherwise`` in evaluation mode."""
    return if_training if training else otherwise


def set_item(target: Tensor, index: Any, value: Any) -> Tensor:
    """Carry out ``target[index] = value`` and return ``target``, so that later readers depend on the write."""
    target[index] = value
    return target


def apply_function(name: str, *args: Any) -> Any:
    """Apply the custom autograd function with the qualified ``name``, of a module that is loaded."""
    return resolve_autograd_function(name).apply(*args)


@has_side_effect
def write_back(buffer: Tensor, value: Tensor) -> None:
    """Give a buffer the values of the tensor that took its place in the model's own forward."""
    with torch.no_grad():
        buffer.copy_(value)


def make_object(name: str, attributes: dict[str, Any]) -> Any:
    """Return an object of the class with the qualified ``name``, of a module that is loaded, with ``attributes``."""
    return with_attributes(resolve_object_class(name), attributes)


@has_side_effect
def enter_grad_mode(enabled: bool) -> bool:
    """Turn the recording of gradients on or off and return what it was: the start of a region."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(enabled)
    return before


@has_side_effect
def exit_grad_mode(before: bool) -> None:
    """Put the recording of gradients back: the end of a region."""
    torch.set_grad_enabled(before)


@has_side_effect
def enter_autocast(device_type: str, dtype: torch.dtype, enabled: bool, cache_enabled: bool) -> torch.autocast:
    """Enter an autocast region and return it."""
    region = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    region.__enter__()
    return region


@has_side_effect
def exit_autocast(region: torch.autocast) -> None:
    """Leave an autocast region."""
    region.__exit__(None, None, None)


@has_side_effect
def expect(value: Any, recorded: Any, what: str) -> None:
    """Check that a value which shaped the recording is still what it was.

    Raises
    ------
    InputError
        If it differs: the graph holds for the recorded value only.
    """
    if type(value) is not type(recorded) or value != recorded:
        raise InputError(
            f"{what} is {value!r}, and the model was recorded with {recorded!r}: its graph holds for that value "
            "only. Pass the recorded value, or record the model again with this one."
        )


@has_side_effect
def expect_value(tensor: Tensor, recorded: Any, what: str) -> None:
    """Check that a value which Python read from a tensor is still what it was.

    Raises
    ------
    InputError
        If it differs.
    """
    if isinstance(recorded, list):
        expect(tensor.tolist(), recorded, what)
    else:
        expect(type(recorded)(tensor.item()), recorded, what)


@has_side_effect
def expect_size(value: Tensor, dimension: int, size: int, what: str) -> None:
    """Check that a tensor still has the size it was recorded with.

    Raises
    ------
    InputError
        If it differs.
    """
    if value.shape[dimension] != size:
        raise InputError(
            f"{what} has size {value.shape[dimension]} in dimension {dimension}, and the model was recorded with "
            f"{size}; this model's graph depends on it. Use that size for every micro-batch, or record the model "
            "again with this one."
        )


@contextmanager
def modes_kept() -> Iterator[None]:
    """Put grad mode and autocast back where an error leaves a recorded region open."""
    accelerator = torch.accelerator.current_accelerator()
    devices = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    enabled = torch.is_grad_enabled()
    cached = torch.is_autocast_cache_enabled()
    casts = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    try:
        yield
    except BaseException:
        torch.set_grad_enabled(enabled)
        torch.set_autocast_cache_enabled(cached)
        for device, is_on, dtype in casts:
            torch.set_autocast_enabled(device, is_on)
            torch.set_autocast_dtype(device, dtype)
        torch.autocast_increment_nesting()
        while torch.autocast_decrement_nesting() > depth:
            pass
        if depth == 0:
            torch.clear_autocast_cache()
        raise
