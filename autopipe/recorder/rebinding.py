"""Whether a module rebinds attributes of its own while it runs is found by comparing them before and after."""

from typing import Any

from torch import nn


class LeafAttributes:
    """The attributes of all modules of a model, as each was when it last ran: between calls, nobody may set them.

    A graph has no place for ``self.child.state = None`` in an open module, where ``child`` is a leaf.
    """

    def __init__(self, model: nn.Module) -> None:
        self._known = {id(module): attributes_of(module) for module in model.modules()}

    def set_meanwhile(self, leaf: nn.Module, path: str) -> str | None:
        """Return the name of an attribute in ``leaf`` that is not what it was after its last call, None if all are."""
        for inner, module in leaf.named_modules(prefix=path):
            known = self._known.get(id(module))
            name = None if known is None else rebound(module, known)
            if name is not None:
                return f"{inner}.{name}"
        return None

    def learn(self, leaf: nn.Module) -> None:
        """Remember the attributes as they are after a call of ``leaf``."""
        self._known.update((id(module), attributes_of(module)) for module in leaf.modules())


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
