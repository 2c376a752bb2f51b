"""An object of an ordinary class is taken apart into its attributes, and made again of them without its own code."""

from functools import cache
from typing import Any

from torch import Tensor, fx, nn

from autopipe.errors import DocumentError
from autopipe.recorder.foreign import find_class

_DEEPEST = 3
_MOST = 64


def attributes_with_tensors(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that does nothing but hold values, tensors among them; None for any other.

    Such are torchvision's ``ImageList`` and torch's distributions. One with tensors deeper than three containers,
    or with very many attributes, is taken for more than a holder.
    """
    kind: Any = type(value)
    if not _is_plain(kind):
        return None
    attributes: dict[str, Any] = vars(value)
    return dict(attributes) if len(attributes) <= _MOST and _holds_tensor(attributes, _DEEPEST) else None


def with_attributes(kind: type, attributes: dict[str, Any]) -> Any:
    """Return an object of class ``kind`` with these attributes; its ``__init__`` is not called."""
    made: Any = object.__new__(kind)
    vars(made).update(attributes)
    return made


def object_class_name(value: Any) -> str:
    """Return the name under which `resolve_object_class` finds the class of ``value``."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


@cache
def resolve_object_class(name: str) -> type:
    """Return the class called ``name``, of the modules that are loaded already.

    Raises
    ------
    DocumentError
        If no loaded module has it, or making one of its objects would run code of its own.
    """
    kind = find_class(name) if isinstance(name, str) else None
    if kind is None or not _is_plain(kind):
        raise DocumentError(
            f"the graph builds an object of class {name!r}, which is no ordinary class of a module that is loaded. "
            "Import the model's own code first, or record the model again."
        )
    return kind


@cache
def _is_plain(kind: Any) -> bool:
    """Return whether objects of ``kind`` are their attributes, and neither making nor losing one runs any code."""
    if issubclass(kind, (Tensor, nn.Module, fx.Node, type)):
        return False
    if kind.__new__ is not object.__new__ or kind.__setattr__ is not object.__setattr__ or hasattr(kind, "__del__"):
        return False
    is_named = find_class(f"{kind.__module__}.{kind.__qualname__}") is kind
    return is_named and hasattr(kind, "__dict__") and kind.__dictoffset__ != 0


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, Tensor):
        return True
    if depth == 0:
        return False
    kind: Any = type(value)
    if isinstance(value, dict):
        items = tuple(value.values())
    elif isinstance(value, tuple | list):
        items = tuple(value)
    elif _is_plain(kind):
        items = tuple(vars(value).values())
    else:
        return False
    return any(_holds_tensor(item, depth - 1) for item in items[:_MOST])
