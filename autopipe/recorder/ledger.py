"""Every tensor of a run is known by identity: which node made it, or which parameter, buffer or constant it is."""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from autopipe.recorder import glue
from autopipe.recorder.functions import class_name
from autopipe.recorder.glue import ATTRIBUTES
from autopipe.recorder.notes import NOTE, Note, describe, memory, note_of
from autopipe.recorder.objects import attributes_with_tensors, object_class_name
from autopipe.recorder.refusal import Unwritable

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format, torch.layout, type(...))


TensorNames = Mapping[int, str]

LARGEST_CONSTANT = 1024


def tensor_names(model: nn.Module) -> TensorNames:
    """Return the name of every parameter, buffer and plain tensor attribute by identity, parameters first."""
    names: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(id(tensor), name)
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor):
                names.setdefault(id(value), f"{path}.{attribute}" if path else attribute)
    return names


class Ledger:
    """What each tensor and module of one run is called in the graph."""

    def __init__(self, model: nn.Module, graph: fx.Graph, names: TensorNames, note: Callable[[], Note]) -> None:
        self.graph = graph
        self._note = note
        self._model = model
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._modules = dict(model.named_modules())
        self.names = names
        self._makers: dict[int, list[fx.Node]] = {}
        self._alive: list[Any] = []
        self._calls: list[tuple[str, fx.Node]] = []
        self.varying: frozenset[int] = frozenset()
        self.kept: dict[str, Tensor] | None = None
        self.copied: frozenset[str] = frozenset()

    def path(self, module: nn.Module) -> str | None:
        """Return the first name of a module of the model, None for a module that is not part of it."""
        return self._paths.get(id(module))

    def title(self, path: str) -> str:
        """Return a module's path and class for a message."""
        kind = type(self._modules[path]).__name__
        return f"`{path}` ({kind})" if path else f"{kind} (the model itself)"

    def last(self) -> fx.Node | None:
        """Return the node written last."""
        return next(iter(reversed(self.graph.nodes)), None)

    def erase_after(self, mark: fx.Node | None) -> None:
        """Forget every node after ``mark``, and with them what they made."""
        for node in reversed(list(self.graph.nodes)):
            if node is mark:
                return
            self.graph.erase_node(node)

    def learn(self, value: Any, node: fx.Node) -> list[tuple[fx.Node, Any]]:
        """Remember that ``node`` made ``value``, and write the access to each part of it behind the node.

        Returns
        -------
        list of (fx.Node, value)
            The parts that are no tensors, each with the node that reads it.
        """
        plain: list[tuple[fx.Node, Any]] = []
        self._alive.append(value)
        if isinstance(value, Tensor):
            self._makers.setdefault(id(value), []).append(node)
            if self.kept is not None:
                self.kept[node.name] = value.detach().clone()
            return plain
        for key, part, access in _parts(value):
            if part is None:
                continue
            child = self.graph.create_node("call_function", access, (node, key))
            inherited = note_of(node)
            child.meta[NOTE] = describe(dataclasses.replace(inherited, writes=frozenset(), draws=False), part)
            if isinstance(part, (bool, int, float, complex, str)):
                plain.append((child, part))
            else:
                plain += self.learn(part, child)
        return plain

    def is_tainted(self, tensor: Tensor) -> bool:
        """Return whether the shape of a tensor depends on values."""
        maker = self._maker(tensor)
        return maker is not None and note_of(maker).is_tainted

    def is_constant(self, values: Sequence[Tensor]) -> bool:
        """Return whether all ``values`` depend on neither inputs nor parameters nor chance."""
        makers = [self._maker(value) for value in values]
        if not all(maker is not None and note_of(maker).is_constant for maker in makers):
            return False
        return not any(memory(value) in self.varying for value in values)

    def argument(self, value: Any) -> Any:
        """Return what stands for ``value`` among a node's arguments.

        Raises
        ------
        Unwritable
            If the value, or a part of it, has no form in a graph.
        """
        if isinstance(value, Tensor):
            return self._node_of(value)
        if value is None or type(value) in _PLAIN or isinstance(value, (torch.dtype, torch.layout)):
            return value
        if type(value) is tuple or isinstance(value, torch.Size) or _is_struct_sequence(value):
            return tuple(self.argument(item) for item in value)
        if type(value) is list:
            return [self.argument(item) for item in value]
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {key: self.argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if isinstance(value, range):
            return list(value)
        if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            return value.item()
        if class_name(type(value)) is not None:
            return self._structure(value)
        if (attributes := attributes_with_tensors(value)) is not None:
            given = {name: self.argument(item) for name, item in attributes.items()}
            return self._emit(glue.make_object, (object_class_name(value), given), {})
        raise Unwritable(f"is given a value of type {type(value).__module__}.{type(value).__qualname__}")

    def _structure(self, value: Any) -> fx.Node:
        kind = type(value)
        if dataclasses.is_dataclass(kind):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind) if field.init}
            present = {name: self.argument(field) for name, field in fields.items() if field is not None}
            return self._emit(kind, (), present)
        if issubclass(kind, tuple):
            return self._emit(kind, tuple(self.argument(item) for item in value), {})
        return self._emit(kind, (self.argument(dict(value)),), {})

    def _node_of(self, tensor: Tensor) -> fx.Node:
        maker = self._maker(tensor)
        if maker is not None:
            return maker
        name = self.names.get(id(tensor))
        if name is not None:
            node = self.read_attribute(name, tensor)
            return self._copy(node) if name in self.copied else node
        return self._read_back(tensor) or self._constant(tensor)

    def name(self, tensor: Tensor) -> str | None:
        """Return the name of a parameter, buffer or plain tensor attribute of the model, None for another tensor."""
        return self.names.get(id(tensor))

    def read_attribute(self, name: str, tensor: Tensor) -> fx.Node:
        """Write down that the attribute called ``name``, which is ``tensor``, is read."""
        node = self.graph.create_node("get_attr", name)
        node.meta[NOTE] = describe(self._note(), tensor)
        return node

    def _copy(self, source: fx.Node) -> fx.Node:
        """Write down a copy of a buffer that is written later: autograd may keep the copy."""
        node = self.graph.create_node("call_method", "clone", (source,))
        node.meta[NOTE] = dataclasses.replace(note_of(source), storage=None)
        return node

    def called(self, path: str, node: fx.Node) -> None:
        """Remember that ``node`` calls the leaf at ``path``."""
        self._calls.append((path, node))

    def _read_back(self, tensor: Tensor) -> fx.Node | None:
        """Write down, behind the call of a leaf, that an attribute is read on which the leaf has left ``tensor``."""
        for path, call in reversed(self._calls):
            for inner, module in self._modules[path].named_modules(prefix=path) if not call._erased else ():
                name = _attribute_name(module, tensor)
                if name is not None:
                    with self.graph.inserting_after(call):
                        node = self.graph.call_module(f"{ATTRIBUTES}.{inner}.{name}", (call,))
                    node.meta[NOTE] = describe(
                        dataclasses.replace(note_of(call), writes=frozenset(), draws=False), tensor
                    )
                    self._alive.append(tensor)
                    self._makers.setdefault(id(tensor), []).append(node)
                    return node
        return None

    def _constant(self, tensor: Tensor) -> fx.Node:
        """Write a small tensor from nowhere down by value; recordings that disagree on it are not laid over."""
        try:
            is_small = not tensor.requires_grad and tensor.numel() <= LARGEST_CONSTANT
            values = tensor.tolist() if is_small and tensor.layout is torch.strided else None
        except RuntimeError:
            # A tensor of a functorch transform has no values that Python could see.
            values = None
        if values is None:
            raise Unwritable(
                f"is given a tensor of shape {tuple(tensor.shape)} that no recorded operation made: it comes from "
                "numpy, another library, an attribute set meanwhile, or from outside the model"
            )
        keywords: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
        node = self.graph.create_node("call_function", torch.tensor, (values,), keywords)
        node.meta[NOTE] = describe(self._note(), tensor)
        self._alive.append(tensor)
        return node

    def _maker(self, tensor: Tensor) -> fx.Node | None:
        makers = self._makers.get(id(tensor))
        while makers and makers[-1]._erased:
            makers.pop()
        return makers[-1] if makers else None

    def _emit(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, kwargs)
        node.meta[NOTE] = dataclasses.replace(self._note(), is_value=False)
        return node


def _attribute_name(module: nn.Module, tensor: Tensor) -> str | None:
    """Return the name of the attribute of ``module`` that ``tensor`` is."""
    tables = (vars(module), module._buffers)
    return next((name for table in tables for name, value in table.items() if value is tensor), None)


def _parts(value: Any) -> list[tuple[Any, Any, Callable[..., Any]]]:
    """Return (key, part, access function) of each part of a structured value."""
    if isinstance(value, dict):
        return [(key, part, operator.getitem) for key, part in value.items() if isinstance(key, (str, int))]
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return [(index, part, operator.getitem) for index, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name), getattr) for field in dataclasses.fields(value)]
    attributes = attributes_with_tensors(value) or {}
    return [(name, part, getattr) for name, part in attributes.items() if not name.startswith("_")]


def _is_struct_sequence(value: Any) -> bool:
    return isinstance(value, tuple) and type(value).__module__ == "torch.return_types"
