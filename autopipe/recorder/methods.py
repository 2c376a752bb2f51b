"""A method of the model itself that reads values, without weights of its own, is called whole, as a module would be."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, FunctionType
from typing import Any
from unittest import mock

from torch import nn
from torch.overrides import TorchFunctionMode

from autopipe.recorder.example import tensors
from autopipe.recorder.ledger import TensorNames

Call = Callable[..., Any]


def methods_of(model: nn.Module) -> frozenset[str]:
    """Return the methods of ``model`` that a graph may call: those that its own forward names."""
    forward = inspect.unwrap(type(model).forward)
    names = forward.__code__.co_names if isinstance(forward, FunctionType) else ()
    return frozenset(
        name
        for name in names
        if not name.startswith("__")
        and name not in vars(nn.Module)
        and isinstance(inspect.getattr_static(type(model), name, None), FunctionType)
    )


def running_method(model: nn.Module) -> str | None:
    """Return the method of ``model``, named by its forward, that runs now; None if the forward itself does."""
    outermost = None
    frame: FrameType | None = sys._getframe(1)
    names = methods_of(model)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is model:
            if code is getattr(inspect.unwrap(type(model).forward), "__code__", None):
                return outermost
            outermost = code.co_name if code.co_name in names else outermost
        frame = frame.f_back
    return None


@contextmanager
def methods_intercepted(
    model: nn.Module, names: frozenset[str], call: Callable[[str, Call, Any, Any], Any]
) -> Iterator[None]:
    """Let calls of the methods ``names`` of ``model`` go through ``call(name, original, args, kwargs)``."""
    kind = type(model)

    def intercepting(name: str) -> Call:
        original = getattr(kind, name)

        def method(owner: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if owner is not model:
                return original(owner, *args, **kwargs)
            return call(name, original.__get__(owner), args, kwargs)

        return method

    with ExitStack() as stack:
        for name in sorted(names):
            stack.enter_context(mock.patch.object(kind, name, intercepting(name)))
        yield


class Uses(TorchFunctionMode):
    """Sees which tensor of the model is given to a torch function first: ``name``, None while none is."""

    def __init__(self, names: TensorNames) -> None:
        super().__init__()
        self._names = names
        self.name: str | None = None

    def __torch_function__(self, func: Call, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments of a torch function, and call it."""
        given = (self._names.get(id(tensor)) for tensor in tensors((args, kwargs or {})))
        self.name = self.name or next((name for name in given if name is not None), None)
        return func(*args, **(kwargs or {}))
