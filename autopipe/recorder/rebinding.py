"""Whether a module rebinds attributes of its own while it runs is found by comparing them before and after."""

from typing import Any

from torch import nn


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes, its tables of parameters, buffers and modules one level deep."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(module).items()}


def rebound(module: nn.Module, before: dict[str, Any]) -> str | None:
    """Return the name of an attribute that is another object than ``before``, None if there is none."""
    after = attributes_of(module)
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            for key in {**old, **new}:
                if old.get(key) is not new.get(key):
                    return key if name in ("_parameters", "_buffers", "_modules") else name
        elif old is not new:
            return name
    return None
