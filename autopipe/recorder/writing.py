"""A recorded fx graph and its layers become a `Graph` document."""

from collections.abc import Iterator, Sequence

from torch import Tensor, fx, nn

from autopipe.documents.graph import ForbiddenCut, Graph, Layer, Parameter, Value
from autopipe.recorder.configuration import configuration
from autopipe.recorder.encode import encode_node
from autopipe.recorder.example import Example
from autopipe.recorder.glue import is_own
from autopipe.recorder.layers import Group
from autopipe.recorder.makings import find_makings
from autopipe.recorder.notes import memory, note_of


def write_document(
    graph: fx.Graph, groups: Sequence[Group], model: nn.Module, example: Example, *, batch_is_free: bool
) -> Graph:
    """Return the document of ``graph`` grouped into ``groups``.

    Raises
    ------
    CaptureError
        If a node holds something that a document cannot name.
    """
    names = _first_names(model)
    likenesses = list(dict.fromkeys(group.likeness for group in groups))
    layers = []
    for group in groups:
        used = list(dict.fromkeys(name for node in group.nodes for name in _state(node, model, names)))
        layers.append(
            Layer(
                name=group.name,
                kind=group.kind,
                nodes=tuple(node.name for node in group.nodes),
                parameters=tuple(name for name in used if isinstance(_find(model, name), nn.Parameter)),
                buffers=tuple(name for name in used if not isinstance(_find(model, name), nn.Parameter)),
                group=likenesses.index(group.likeness),
                draws=tuple(node.name for node in group.nodes if note_of(node).draws),
            )
        )
    return Graph(
        model=type(model).__name__,
        nodes=tuple(encode_node(node) for node in graph.nodes),
        parameters=parameters_of(model),
        layers=tuple(layers),
        values=_values(graph, groups),
        forbidden_cuts=_forbidden_cuts(groups, model, names),
        whole_inputs=_whole_inputs(graph, example),
        batch_dims=dict(example.dims),
        output_dim=example.output_dim,
        batch_is_free=batch_is_free,
        configuration=configuration(model, modules_called(graph)),
    )


def modules_called(graph: fx.Graph) -> frozenset[str]:
    """Return the paths of the model's modules that ``graph`` calls."""
    return frozenset(str(node.target) for node in graph.nodes if node.op == "call_module" and not is_own(node))


def parameters_of(model: nn.Module) -> tuple[Parameter, ...]:
    """Return every parameter and buffer of ``model`` under its first name, with its other names as aliases."""
    aliases: dict[int, list[str]] = {}
    found: dict[str, tuple[Tensor, bool]] = {}
    for is_buffer, items in (
        (False, model.named_parameters(remove_duplicate=False)),
        (True, model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in items:
            if aliases.setdefault(id(tensor), [name])[0] == name:
                found[name] = (tensor, is_buffer)
            else:
                aliases[id(tensor)].append(name)
    return tuple(
        Parameter(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            bytes=tensor.numel() * tensor.element_size(),
            requires_grad=tensor.requires_grad,
            is_buffer=is_buffer,
            aliases=tuple(aliases[id(tensor)][1:]),
        )
        for name, (tensor, is_buffer) in found.items()
    )


def _first_names(model: nn.Module) -> dict[int, str]:
    names: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(id(tensor), name)
    return names


def _state(node: fx.Node, model: nn.Module, names: dict[int, str]) -> Iterator[str]:
    """Yield the original names of the parameters and buffers that a node reads."""
    target = str(node.target)
    if node.op == "get_attr":
        yield names.get(id(_find(model, target)), target)
    elif node.op == "call_module" and not is_own(node):
        module = model.get_submodule(target)
        yield from (names[id(tensor)] for tensor in (*module.parameters(), *module.buffers()))


def _find(model: nn.Module, name: str) -> object:
    owner, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(owner), attribute)


def _values(graph: fx.Graph, groups: Sequence[Group]) -> tuple[Value, ...]:
    layer_of = {node: index for index, group in enumerate(groups) for node in group.nodes}
    readers = {node: {layer_of[user] for user in node.users} for node in graph.nodes}
    makings = find_makings(graph, {node for node, layers in readers.items() if layers - {layer_of.get(node)}})
    for node, making in makings.items():
        for source in making.sources:
            readers[source] |= readers[node]
    values = []
    for node in graph.nodes:
        if node.op in ("get_attr", "output"):
            continue
        producer = layer_of[node]
        consumers = tuple(sorted(readers[node] - {producer}))
        if not consumers:
            continue
        note = note_of(node)
        values.append(
            Value(
                name=node.name,
                producer=producer,
                consumers=consumers,
                requires_grad=note.requires_grad,
                shape=note.shape,
                dtype=note.dtype,
                bytes=note.bytes,
                rebuilt_by=tuple(step.name for step in makings[node].steps) if node in makings else (),
            )
        )
    return tuple(values)


def _whole_inputs(graph: fx.Graph, example: Example) -> tuple[str, ...]:
    """Return the tensors among the placeholders that do not carry the batch, and the trees of which that was given."""
    values = {str(node.target): example.values[str(node.target)] for node in graph.nodes if node.op == "placeholder"}
    return tuple(
        name
        for name, value in values.items()
        if name in example.whole or (isinstance(value, Tensor) and not example.carries(name, value))
    )


def _forbidden_cuts(groups: Sequence[Group], model: nn.Module, names: dict[int, str]) -> tuple[ForbiddenCut, ...]:
    """Forbid to part the layers that share a buffer (or a frozen parameter) which one of them writes."""
    tensors = {names[id(t)]: t for t in (*model.parameters(), *model.buffers())}
    reasons: dict[int, str] = {}
    readers: dict[str, list[int]] = {}
    writes: set[int] = set()
    for index, group in enumerate(groups):
        for node in group.nodes:
            writes |= note_of(node).writes
            for name in _state(node, model, names):
                readers.setdefault(name, []).append(index)
    for name, layers in readers.items():
        first, last = min(layers), max(layers)
        if first != last and name in tensors and memory(tensors[name]) in writes:
            for position in range(first + 1, last + 1):
                reasons.setdefault(
                    position,
                    f"`{name}` is written while the model runs, and layers `{groups[first].name}` and "
                    f"`{groups[last].name}` both use it",
                )
    return tuple(ForbiddenCut(position=position, reason=reasons[position]) for position in sorted(reasons))
