"""Whether a module rebinds attributes of its own while it runs is found by comparing them before and after."""

from typing import Any

import torch
from torch import Tensor, nn

from autopipe.recorder.notes import memory


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


def undo_views(module: nn.Module, before: dict[str, Any]) -> None:
    """Put back the tensors that ``module`` set to views of all of themselves, as a cast does that changes nothing."""
    for name, old in before.items():
        new = vars(module).get(name)
        if _is_same_data(old, new):
            vars(module)[name] = old
        elif name == "_buffers":
            for key, buffer in old.items():
                if _is_same_data(buffer, module._buffers.get(key)):
                    module._buffers[key] = buffer


def buffers_rebound(module: nn.Module, before: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return (old, new) of each buffer that is another tensor of the same form than ``before``, without a gradient."""
    pairs = ((old, module._buffers.get(name)) for name, old in before.get("_buffers", {}).items())
    return [(old, new) for old, new in pairs if new is not None and _is_successor(old, new)]


def put_back_buffer(module: nn.Module, old: Tensor, new: Tensor) -> None:
    """Let ``old``, with the values of ``new``, be the buffer again that ``new`` has replaced."""
    name = next(name for name, buffer in module._buffers.items() if buffer is new)
    with torch.no_grad():
        old.copy_(new)
    module._buffers[name] = old


def _is_successor(old: Tensor | None, new: Tensor) -> bool:
    if old is None or old is new:
        return False
    is_alike = (old.shape, old.dtype, old.device, old.layout) == (new.shape, new.dtype, new.device, new.layout)
    return is_alike and not new.requires_grad and not old.requires_grad


def _is_same_data(old: Any, new: Any) -> bool:
    """Return whether two tensors are one as far as anyone can see, though not one object."""
    if old is new or not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return False
    identity = memory(old)
    return identity is not None and identity == memory(new) and _form(old) == _form(new)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.requires_grad


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
