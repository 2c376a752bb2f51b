"""Registered operators and custom autograd functions, a library's or the user's, are named and found by name."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from autopipe.errors import DocumentError

_OPERATORS = "torch.ops."


def find_class(name: str) -> type | None:
    """Return the class with the qualified ``name``, from the modules that are loaded already; None if none has it."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:length]))
        if value is None:
            continue
        for part in parts[length:]:
            value = value.__dict__.get(part) if hasattr(value, "__dict__") else None
        return value if isinstance(value, type) else None
    return None


def autograd_function_name(kind: type) -> str | None:
    """Return the name under which the autograd function ``kind`` is found again, None if it is local to a function."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if find_class(name) is kind else None


def resolve_autograd_function(name: str) -> type[torch.autograd.Function]:
    """Return the custom autograd function called ``name``, from the modules that are loaded already.

    Raises
    ------
    DocumentError
        If no loaded module has it, or it is no autograd function.
    """
    kind = find_class(name) if isinstance(name, str) else None
    if kind is None or not issubclass(kind, torch.autograd.Function):
        raise DocumentError(
            f"the graph applies {name!r}, which is no custom autograd function of a module that is loaded. Import the "
            "model's own code first, or record the model again."
        )
    return kind


def operator_name(function: Any) -> str | None:
    """Return the name of an operator of ``torch.ops``, with its overload where it has one; None for anything else.

    Only an operator whose first argument is a tensor has one: among the others are those that open files.
    """
    if isinstance(function, OpOverload):
        schemas = [function._schema]
        name = f"{_OPERATORS}{function.namespace}.{function.__name__}"
    elif isinstance(function, OpOverloadPacket):
        schemas = list(function._schemas.values())
        name = f"{_OPERATORS}{function._qualified_op_name.replace('::', '.')}"
    else:
        return None
    takes_tensor = any(
        schema.arguments and str(schema.arguments[0].type).startswith(("Tensor", "Optional[Tensor", "List[Tensor"))
        for schema in schemas
    )
    return name if takes_tensor else None


def resolve_operator(name: str) -> Callable[..., Any] | None:
    """Return the registered operator called ``name``, None if it names none that a graph may call."""
    parts = name.removeprefix(_OPERATORS).split(".")
    if not name.startswith(_OPERATORS) or len(parts) not in (2, 3) or not all(map(str.isidentifier, parts)):
        return None
    if not torch._C._jit_get_schemas_for_operator(f"{parts[0]}::{parts[1]}"):
        return None
    value: Any = torch.ops
    for part in parts:
        value = getattr(value, part, None)
    return value if operator_name(value) is not None else None


def has_value_shape(function: Any) -> bool:
    """Return whether a registered operator says that the shapes of its results depend on values."""
    overloads = [function] if isinstance(function, OpOverload) else []
    if isinstance(function, OpOverloadPacket):
        overloads = [getattr(function, name) for name in function.overloads()]
    return any(torch.Tag.dynamic_output_shape in overload.tags for overload in overloads)
