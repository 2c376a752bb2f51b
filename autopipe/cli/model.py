"""MODEL on the command line, ``package.module:factory`` or ``path/to/file.py:factory``, becomes a module."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import autopipe
from autopipe.errors import AutopipeError, InputError

FORM = "write package.module:factory or path/to/file.py:factory"


class Built(NamedTuple):
    """What a factory gives: the model, and where it says so the arguments to call it with and its loss."""

    model: nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any]
    loss_fn: Callable[..., Tensor] | None


def build(spec: str, *, on: str | None = None) -> Built:
    """Return what the factory that ``spec`` names gives: a module, or (module, example, loss_fn).

    An example is one tensor, a tuple of positional arguments, or a mapping of keyword arguments. With ``on``, the
    factory is called with that device as torch's default.

    Raises
    ------
    InputError
        If there is no such file, module or factory, if one of them raises, or if the factory gives
        something else; the message names the user's file and line.
    """
    factory = load(spec)
    with nullcontext() if on is None else torch.device(on):
        result = _call(factory, spec)
    parts = result if isinstance(result, tuple) else (result, None, None)
    if len(parts) != 3 or not isinstance(parts[0], nn.Module):
        raise InputError(
            f"{spec} gives {_describe(result)}, and a model is needed: "
            "return a torch.nn.Module, or (module, example, loss_fn)."
        )
    model, example, loss_fn = parts
    if loss_fn is not None and not callable(loss_fn):
        raise InputError(f"the loss that {spec} gives is {_describe(loss_fn)}: return a function of (output, target).")
    if isinstance(example, Mapping):
        return Built(model, (), dict(example), loss_fn)
    if example is not None and not isinstance(example, tuple | list):
        example = (example,)
    return Built(model, None if example is None else tuple(example), {}, loss_fn)


def load(spec: str) -> Any:
    """Return the object that ``spec`` names, importing its module or file.

    Raises
    ------
    InputError
        If there is no such file, module or name, or if the import raises.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"{spec!r} names no function: {FORM}.")
    if place.endswith(".py") or os.sep in place:
        path = Path(place)
        if not path.is_file():
            raise InputError(f"there is no file {place}: check the path, or {FORM}.")
        module = guarded(lambda: _import_file(path), f"importing {place}")
    else:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        module = guarded(lambda: importlib.import_module(place), f"importing {place}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [known for known, value in vars(module).items() if callable(value) and known[0] != "_"]
            raise InputError(f"{place} has no {name!r}; it has {', '.join(public[:12]) or 'no function at all'}.")
        found = getattr(found, part)
    return found


def guarded(action: Callable[[], Any], what: str) -> Any:
    """Return what ``action``, the user's code, returns.

    Raises
    ------
    InputError
        If it raises; the message holds the user's file and line, not one inside torch.
    """
    try:
        return action()
    except AutopipeError:
        raise
    except Exception as error:
        # Nor one of autopipe's own, nor of code that was made from a string, such as a recorded graph's.
        others = (os.path.dirname(autopipe.__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep, "<")
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        reason = str(error).removesuffix(".")
        raise InputError(f"{what} failed: {type(error).__name__}: {reason}{place}.") from error


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"autopipe_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file: {FORM}.")
    module = importlib.util.module_from_spec(spec)
    # Its classes must be found by name (dataclasses do that), and its neighbours by import.
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _call(factory: Any, spec: str) -> Any:
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InputError(f"{spec} is {_describe(factory)}: name a function without arguments that returns a model.")
    return guarded(factory, f"calling {spec}()")


def _describe(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
