"""While a model is recorded, module calls and a few calls that torch hides from function modes are intercepted."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest import mock

import torch
from torch import nn


class Listener(Protocol):
    """What is told of intercepted calls."""

    muted: bool
    compiling: bool

    def call_module(self, module: nn.Module, args: Any, kwargs: Any, original: Callable[..., Any]) -> Any:
        """Carry out a module call."""

    def enter_autocast(self, region: torch.autocast) -> None:
        """Hear that an autocast region starts."""

    def exit_autocast(self, region: torch.autocast) -> None:
        """Hear that an autocast region ends."""

    def apply_function(self, kind: Any, args: Any, original: Callable[..., Any]) -> Any:
        """Carry out ``original(*args)``, the call of the custom autograd function ``kind``."""

    def notice(self, reason: str) -> None:
        """Hear of something that a graph cannot hold."""


@contextmanager
def intercepted(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of this thread's module calls, autocast regions and custom autograd functions.

    Other threads, which may train meanwhile, keep torch's own behaviour; everything is put back at the end.
    """
    thread = threading.get_ident()
    call = nn.Module.__call__
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    # A Python classmethod up to torch 2.13, one written in C from 2.14 on: both bind to a class in this way.
    apply = torch.autograd.Function.__dict__["apply"]
    is_compiling = torch.compiler.is_compiling
    check_tensor = torch._check_tensor_all_with

    def is_ours() -> bool:
        return threading.get_ident() == thread

    def module_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_ours():
            return listener.call_module(module, args, kwargs, call)
        return call(module, *args, **kwargs)

    def autocast_enter(region: torch.autocast) -> Any:
        result = enter(region)
        if is_ours():
            listener.enter_autocast(region)
        return result

    def autocast_exit(region: torch.autocast, *error: Any) -> Any:
        if is_ours():
            listener.exit_autocast(region)
        return leave(region, *error)

    def function_apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        def original(*given: Any) -> Any:
            return apply.__get__(None, kind)(*given, **kwargs)

        if is_ours() and not listener.muted and not kwargs:
            return listener.apply_function(kind, args, original)
        return original(*args)

    def check(*args: Any, **kwargs: Any) -> Any:
        # A validation that raises or does nothing: its reading of values shapes no graph.
        muted, listener.muted = listener.muted, True
        try:
            return check_tensor(*args, **kwargs)
        finally:
            listener.muted = muted

    def compiling() -> bool:
        return is_compiling() or (listener.compiling and is_ours() and not listener.muted)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "__call__", module_call))
        stack.enter_context(mock.patch.object(torch.autocast, "__enter__", autocast_enter))
        stack.enter_context(mock.patch.object(torch.autocast, "__exit__", autocast_exit))
        stack.enter_context(mock.patch.object(torch.autograd.Function, "apply", classmethod(function_apply)))
        stack.enter_context(mock.patch.object(torch.compiler, "is_compiling", compiling))
        stack.enter_context(mock.patch.object(torch, "_check_tensor_all_with", check))
        yield
