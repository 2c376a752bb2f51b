"""A `Graph` is a recorded model: its fx nodes, the layers they form, and what crosses between layers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from autopipe.documents.files import Document, fingerprint


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fx node.

    ``arguments`` and ``keywords`` hold the node's args and kwargs in the plain-JSON form of
    ``autopipe.recorder.encode`` (references to other nodes, dtypes, slices and so on are tagged objects).
    """

    name: str
    op: str
    target: str
    arguments: Any = ()
    keywords: Any = {}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter or buffer of the model under its original name (the first one, where it has several)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    requires_grad: bool
    is_buffer: bool = False
    aliases: tuple[str, ...] = ()


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that one layer makes and later layers read.

    ``name`` is the fx node that makes it; ``producer`` and ``consumers`` are layer indices, consumers
    ascending and above the producer. A tensor has ``shape``, ``dtype`` and ``bytes`` as in the example
    run; a value that is no tensor (a number, a string, None) has none of them. ``rebuilt_by`` names the nodes, in
    order, with which a stage that reads the value makes it again instead of receiving it; () where it is sent.
    """

    name: str
    producer: int
    consumers: tuple[int, ...]
    requires_grad: bool = False
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    bytes: int = 0
    rebuilt_by: tuple[str, ...] = ()

    @property
    def is_rebuilt(self) -> bool:
        """Whether stages make the value again instead of receiving it."""
        return bool(self.rebuilt_by)


class Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An indivisible unit of a plan: consecutive fx nodes.

    ``name`` is the module path a person recognises; ``kind`` a class or function name; ``parameters`` and
    ``buffers`` the original (first) names of what it reads; ``group`` is equal for layers that are
    identical but for their weights; ``draws`` names the nodes that draw random numbers in training.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    group: int = 0
    draws: tuple[str, ...] = ()


class ForbiddenCut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No stage may begin at layer ``position`` because of ``reason``."""

    position: int
    reason: str


class Graph(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.graph"):
    """A model recorded as a torch.fx graph and grouped into layers.

    Placeholders belong to the first layer and the output node to the last; a ``get_attr`` node belongs to
    the layer that reads it, so parameters and buffers never cross; every crossing value is a tensor or a
    plain value (number, string, None). ``whole_inputs`` are the placeholders of tensors that do not carry the
    batch, and go whole to every micro-batch; ``batch_dims`` says in which dimension others do where that is not their
    first, ``output_dim`` in which the output does, and ``target_dim`` in which targets do where that was given.
    ``configuration`` is a digest of what else the recording took from each module, by path: rates, sizes, flags.
    """

    model: str
    nodes: tuple[Node, ...]
    parameters: tuple[Parameter, ...]
    layers: tuple[Layer, ...]
    values: tuple[Value, ...]
    forbidden_cuts: tuple[ForbiddenCut, ...] = ()
    whole_inputs: tuple[str, ...] = ()
    batch_dims: dict[str, int] = msgspec.field(default_factory=dict)
    output_dim: int = 0
    target_dim: int | None = None
    batch_is_free: bool = True
    configuration: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the placeholders, in the order in which the first stage takes them."""
        return tuple(node.target for node in self.nodes if node.op == "placeholder")

    @property
    def fingerprint(self) -> str:
        """A digest of what the model is (nodes, parameters, layers), not of the example it was recorded on."""
        return fingerprint((self.nodes, self.parameters, self.layers))

    def tied(self) -> dict[str, tuple[int, ...]]:
        """Return the trainable parameters that more than one layer reads: name -> layer indices, ascending."""
        readers: dict[str, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for name in layer.parameters:
                readers.setdefault(name, []).append(index)
        return {name: tuple(layers) for name, layers in readers.items() if len(layers) > 1}

    def faults(self) -> Iterator[str]:
        """Yield what the fields contradict each other in: values and cuts of layers that are not there."""
        last = len(self.layers) - 1
        for index, value in enumerate(self.values):
            places = (value.producer, *value.consumers)
            if not value.consumers or any(low >= high for low, high in pairwise(places)):
                yield f"values[{index}] is made by layer {value.producer} and read by {value.consumers}, in no order"
            elif places[0] < 0 or places[-1] > last:
                yield f"values[{index}] is of layers {places[0]} to {places[-1]}, and there are 0 to {last}"
        dims = {**self.batch_dims, "the output": self.output_dim, "the targets": self.target_dim or 0}
        for name, dimension in dims.items():
            if dimension < 0:
                yield f"the batch is in dimension {dimension} of {name}, and dimensions count from 0"
        for index, cut in enumerate(self.forbidden_cuts):
            if not 0 <= cut.position <= last:
                yield f"forbidden_cuts[{index}].position is {cut.position}, and there are layers 0 to {last}"
