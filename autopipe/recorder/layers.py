"""The nodes of a recorded graph are grouped into layers: one per module with weights, cheap glue fused to it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import fx, nn

from autopipe.recorder.cuts import Cuts, find_cuts
from autopipe.recorder.glue import is_own
from autopipe.recorder.notes import note_of

_PRODUCTS = (
    "linear bilinear matmul rmatmul mm bmm addmm baddbmm mv einsum tensordot embedding embedding_bag conv1d "
    "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d multi_head_attention_forward"
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The nodes of one layer in order, its name, its kind and a digest of all but its weights."""

    name: str
    kind: str
    nodes: tuple[fx.Node, ...]
    likeness: str


def group_layers(graph: fx.Graph, model: nn.Module) -> tuple[Group, ...]:
    """Return the layers of ``graph``, whose ``get_attr`` nodes are changed to one per layer that reads them.

    Between two modules with weights the cut lies where the fewest bytes cross; where several places are
    equal, at the edge of an open module, else as late as possible.
    """
    cuts = find_cuts(graph)
    anchors = _anchors(graph, cuts, model)
    starts = [0]
    for before, after in pairwise(anchors):
        places = [place for place in range(before + 1, after + 1) if cuts.is_legal[place]]
        if places:
            starts.append(min(places, key=lambda place: _preference(cuts, place)))
    bounds = [*starts, len(cuts.steps)]
    spans = [cuts.steps[begin:end] for begin, end in pairwise(bounds)]
    _give_each_its_own_attributes(graph, spans)
    return _name_groups(graph, model, spans)


def _preference(cuts: Cuts, place: int) -> tuple[int, bool, int]:
    is_inside = note_of(cuts.steps[place - 1]).owner == note_of(cuts.steps[place]).owner
    return cuts.bytes[place], is_inside, -place


def _anchors(graph: fx.Graph, cuts: Cuts, model: nn.Module) -> list[int]:
    """Return the places of the nodes with weights: no layer holds two of them if a cut between them is legal."""
    weights: set[fx.Node] = set()
    anchors = []
    for node in graph.nodes:
        sources = node.all_input_nodes
        if _has_matrix(node, model):
            anchors.append(node)
        elif node.op == "get_attr" or (sources and all(source in weights for source in sources)):
            weights.add(node)
        elif _is_product(node) and any(source in weights for source in sources):
            anchors.append(node)
    if len(anchors) < 2:
        anchors = [node for node in cuts.steps if _is_module(node) or _is_product(node)]
    places = {node: place for place, node in enumerate(cuts.steps)}
    return [places[node] for node in anchors]


def _is_product(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name.strip("_") in _PRODUCTS.split()


def _has_matrix(node: fx.Node, model: nn.Module) -> bool:
    """Return whether a module has weights of more than one dimension (a norm or a scale is glue)."""
    if not _is_module(node):
        return False
    return any(parameter.dim() > 1 for parameter in model.get_submodule(str(node.target)).parameters())


def _is_module(node: fx.Node) -> bool:
    return node.op == "call_module" and not is_own(node)


def _give_each_its_own_attributes(graph: fx.Graph, spans: Sequence[Sequence[fx.Node]]) -> None:
    for span in spans:
        present: dict[str, fx.Node] = {}
        for node in span:
            for source in node.all_input_nodes:
                if source.op != "get_attr":
                    continue
                known = present.get(str(source.target))
                if known is None:
                    with graph.inserting_before(node):
                        known = graph.get_attr(str(source.target))
                    known.meta.update(source.meta)
                    present[str(source.target)] = known
                node.replace_input_with(source, known)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _name_groups(graph: fx.Graph, model: nn.Module, spans: Sequence[Sequence[fx.Node]]) -> tuple[Group, ...]:
    owned = _owned(graph)
    placeholders = tuple(node for node in graph.nodes if node.op == "placeholder")
    outputs = tuple(node for node in graph.nodes if node.op == "output")
    taken: dict[str, int] = {}
    groups = []
    for index, span in enumerate(spans):
        members = set(span)
        reads = {source for node in span for source in node.all_input_nodes if source.op == "get_attr"}
        is_last = index == len(spans) - 1
        if is_last:
            reads |= {source for node in outputs for source in node.all_input_nodes if source.op == "get_attr"}
        nodes = tuple(node for node in graph.nodes if node in members or node in reads)
        name, kind = _title(span, members, model, owned)
        taken[name] = taken.get(name, 0) + 1
        groups.append(
            Group(
                name=name if taken[name] == 1 else f"{name}@{taken[name]}",
                kind=kind,
                nodes=(placeholders if index == 0 else ()) + nodes + (outputs if is_last else ()),
                likeness=_likeness(nodes, model),
            )
        )
    return tuple(groups)


def _owned(graph: fx.Graph) -> dict[str, set[fx.Node]]:
    """Return the nodes that run inside each open module but the root."""
    owned: dict[str, set[fx.Node]] = {}
    for node in graph.nodes:
        parts = note_of(node).owner.split(".") if node.op not in ("placeholder", "get_attr", "output") else []
        for length in range(1, len(parts) + 1):
            if path := ".".join(parts[:length]):
                owned.setdefault(path, set()).add(node)
    return owned


def _title(
    span: Sequence[fx.Node], members: set[fx.Node], model: nn.Module, owned: dict[str, set[fx.Node]]
) -> tuple[str, str]:
    """Return the name and kind of a layer: of the open module it is the whole of, else of its heaviest part."""
    whole = [path for path, nodes in owned.items() if nodes <= members]
    heavy = max(span, key=lambda node: _weight(node, model), default=None)
    if whole:
        path = min(whole, key=lambda path: (-len(owned[path]), len(path)))
        if heavy in owned[path]:
            return path, type(model.get_submodule(path)).__name__
    if heavy is None:
        return "output", "output"
    if _is_module(heavy):
        return str(heavy.target), type(model.get_submodule(str(heavy.target))).__name__
    function = str(heavy.target) if isinstance(heavy.target, str) else getattr(heavy.target, "__name__", "function")
    function = function.rpartition(".")[2]
    owner = note_of(heavy).owner
    return f"{owner}.{function}" if owner else function, function


def _weight(node: fx.Node, model: nn.Module) -> tuple[bool, int]:
    """Return how much a node stands for its layer: products and modules first, then by size of their weights."""
    if _is_module(node):
        return True, _numel(model.get_submodule(str(node.target)).parameters())
    return _is_product(node), sum(
        note_of(source).bytes // 4 for source in node.all_input_nodes if source.op == "get_attr"
    )


def _numel(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _likeness(nodes: Sequence[fx.Node], model: nn.Module) -> str:
    """Return a digest that is equal for layers that are identical but for their weights."""
    numbers = {node: index for index, node in enumerate(nodes)}
    outside: dict[fx.Node, str] = {}

    def stand_in(source: fx.Node) -> Any:
        if source in numbers:
            return f"%{numbers[source]}"
        return outside.setdefault(source, f"<{len(outside)}:{note_of(source).shape}:{note_of(source).dtype}>")

    lines = []
    for node in nodes:
        target = str(node.target)
        if _is_module(node):
            module = model.get_submodule(target)
            shapes = [(tuple(p.shape), p.dtype, p.requires_grad) for p in module.parameters()]
            target = f"{type(module).__name__}({module.extra_repr()}){shapes}{module.training}"
        elif node.op == "get_attr":
            target = f"{note_of(node).shape}{note_of(node).dtype}{note_of(node).requires_grad}"
        elif is_own(node):
            target = target.rpartition(".")[2]
        lines.append(f"{node.op} {target} {fx.map_arg((node.args, node.kwargs), stand_in)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
