"""A segment is one layer of a stage as a module of its own, over the stage's own parameters."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from autopipe.recorder.code import RecordedCode

SEGMENTS = "autopipe_layers"


class Segment(nn.Module):
    """Runs ``graph``, one layer, with the modules, parameters and buffers of ``root``, the stage that it is part of.

    It owns no parameters, so that those of the stage keep their names, and looks them up in the stage at every
    call, so that it heeds whoever replaces one there (``to``, `torch.distributed.fsdp.fully_shard`).
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, *, layer: str) -> None:
        super().__init__()
        self.layer = layer
        self._root = (root,)
        graph.set_codegen(RecordedCode(graph))
        code = graph.python_code("self")
        namespace = dict(code.globals)
        exec(compile(code.src, f"<layer {layer}>", "exec"), namespace)
        self._function = namespace["forward"]
        called = [str(node.target) for node in graph.nodes if node.op == "call_module"]
        read = [str(node.target).rpartition(".") for node in graph.nodes if node.op == "get_attr"]
        modules = [_wrapped(root.get_submodule(name)) for name in called]
        self.parts = tuple(dict.fromkeys(part for module in modules for part in module.modules()))
        places = [(part, name) for part in self.parts for name in part._buffers]
        places += [(root.get_submodule(path), name) for path, _, name in read]
        self.buffers_read = tuple((owner, name) for owner, name in places if owner._buffers.get(name) is not None)

    def compute(self, *values: Any) -> Any:
        """Return what the layer makes of ``values``: one value, or a tuple of them."""
        return self._function(self._root[0], *values)

    def forward(self, *values: Any) -> Any:
        """Return what the layer makes of ``values``."""
        return self.compute(*values)

    def compile_function(self, **options: Any) -> None:
        """Compile what the layer computes."""
        self._function = torch.compile(self._function, **options)

    def extra_repr(self) -> str:
        """Return the name of the layer."""
        return repr(self.layer)


def insert_segments(
    module: fx.GraphModule,
    layers: Mapping[str, Sequence[str]],
    make: Callable[[nn.Module, fx.Graph, str], Segment],
) -> None:
    """Replace, in a stage, the nodes of each of ``layers`` by one call of the segment that ``make`` returns.

    Parameters
    ----------
    layers : mapping
        The name of each layer -> the names of its nodes.
    make : function of (root, graph, layer)
        Returns the segment of a layer.
    """
    owner = {node: layer for layer, nodes in layers.items() for node in nodes}
    inside: dict[str, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.name in owner and node.op not in ("placeholder", "output"):
            inside.setdefault(owner[node.name], []).append(node)
    ends = {nodes[-1]: layer for layer, nodes in inside.items()}
    replaced = {node for nodes in inside.values() for node in nodes}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node not in replaced:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif node in ends:
            _call_segment(module, graph, copies, ends[node], inside[ends[node]], make)
    graph.set_codegen(RecordedCode(graph))
    module.graph = graph
    graph.lint()


def _call_segment(
    module: fx.GraphModule,
    graph: fx.Graph,
    copies: dict[fx.Node, fx.Node],
    layer: str,
    nodes: list[fx.Node],
    make: Callable[[nn.Module, fx.Graph, str], Segment],
) -> None:
    """Add the call of one layer's segment to ``graph`` and note its results in ``copies``."""
    own = set(nodes)
    reads = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in own))
    results = [node for node in nodes if any(user not in own for user in node.users)]
    part = fx.Graph()
    within = {source: part.placeholder(source.name) for source in reads}
    for node in nodes:
        within[node] = part.node_copy(node, within.__getitem__)
    part.output(within[results[0]] if len(results) == 1 else tuple(within[node] for node in results))
    if not hasattr(module, SEGMENTS):
        module.add_module(SEGMENTS, nn.Module())
    place: nn.Module = getattr(module, SEGMENTS)
    key = str(len(place._modules))
    place.add_module(key, make(module, part, layer))
    # Results keep their names, which are those by which layers know their nodes.
    name = results[0].name if len(results) == 1 else f"{SEGMENTS}_{key}"
    arguments = tuple(copies[source] for source in reads)
    call = graph.create_node("call_module", f"{SEGMENTS}.{key}", arguments, {}, name=name)
    if len(results) == 1:
        copies[results[0]] = call
    else:
        for index, node in enumerate(results):
            copies[node] = graph.create_node("call_function", operator.getitem, (call, index), {}, name=node.name)


def _wrapped(module: nn.Module) -> nn.Module:
    """Return the stage's module that a module of ours calls, where it is not its submodule."""
    inner = getattr(module, "wrapped", None)
    return inner if isinstance(inner, nn.Module) else module
