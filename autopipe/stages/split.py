"""A recorded model is cut at layer boundaries into one ordinary module per stage."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from autopipe.documents.graph import Graph
from autopipe.errors import DocumentError
from autopipe.recorder import assemble
from autopipe.stages.boundary import check_bounds, remade, routes


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Layers ``begin`` to ``end - 1`` as a module.

    ``module`` of the first stage takes the model's own arguments; of the others, the values ``inputs`` in
    order. It returns the values ``outputs`` as a tuple; the last stage returns the model's own output.
    """

    index: int
    begin: int
    end: int
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_last: bool


def split(
    module: fx.GraphModule,
    graph: Graph,
    bounds: Sequence[int],
    *,
    twins: Sequence[Mapping[int, nn.Parameter]] | None = None,
) -> tuple[Stage, ...]:
    """Return the stages of ``module``, the recorded form of a model, cut at ``bounds``.

    Submodules, parameters and buffers are shared with the model and keep their names, so that the union of
    the stages' state_dicts is the model's.

    Parameters
    ----------
    graph : Graph
        The layers of ``module`` and what crosses between them.
    bounds : sequence of int
        (0, b1, ..., L): stage s holds layers bounds[s] to bounds[s+1] - 1.
    twins : sequence of mappings, optional
        By stage: the id of a parameter -> the parameter that stands for it there. A module that holds such a
        parameter is copied for the stage, with all other parameters and buffers shared.

    Raises
    ------
    InputError
        If the bounds do not cut the layers into non-empty stages.
    """
    stages = []
    for piece in pieces(graph, bounds):
        body = piece_body(module.graph, piece)
        replaced = twins[piece.index] if twins else {}
        part = assemble(body, module, class_name="Stage", replace=partial(_with_twins, twins=replaced))
        stages.append(
            Stage(
                index=piece.index,
                begin=piece.begin,
                end=piece.end,
                module=part,
                inputs=piece.inputs,
                outputs=piece.outputs,
                is_last=piece.is_last,
            )
        )
    return tuple(stages)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What a `Stage` is made of: the nodes of its layers and of what it makes again, and the values that pass."""

    index: int
    begin: int
    end: int
    nodes: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_last: bool


def pieces(graph: Graph, bounds: Sequence[int]) -> tuple[Piece, ...]:
    """Return what the stages of ``graph`` between ``bounds`` are made of; raises as `split` does."""
    bounds = check_bounds(bounds, len(graph.layers))
    travels = routes(graph.values, bounds)
    order = {value.name: position for position, value in enumerate(graph.values)}
    found = []
    for index, (begin, end) in enumerate(pairwise(bounds)):
        incoming = {name for route in travels if route.target == index for name in route.names}
        outgoing = {name for route in travels if route.source == index for name in route.names}
        found.append(
            Piece(
                index=index,
                begin=begin,
                end=end,
                nodes=frozenset(name for layer in graph.layers[begin:end] for name in layer.nodes)
                | remade(graph.values, bounds, index),
                inputs=tuple(sorted(incoming, key=order.__getitem__)),
                outputs=tuple(sorted(outgoing, key=order.__getitem__)),
                is_last=index == len(bounds) - 2,
            )
        )
    return tuple(found)


def piece_body(body: fx.Graph, piece: Piece) -> fx.Graph:
    """Return the operations of one stage out of those of the model; the last keeps the model's own output.

    Raises
    ------
    DocumentError
        If the layers and values of the graph do not fit its nodes.
    """
    graph = fx.Graph()
    copies: dict[str, fx.Node] = {name: graph.placeholder(name) for name in piece.inputs}

    def copied(name: str) -> fx.Node:
        if name not in copies:
            raise DocumentError(
                f"stage {piece.index} reads {name!r}, which its layers do not make and no value brings: the graph "
                "was changed by hand. Record the model again."
            )
        return copies[name]

    for node in body.nodes:
        if node.name in piece.nodes and node.name not in piece.inputs:
            copies[node.name] = graph.node_copy(node, lambda read: copied(read.name))
    if not piece.is_last:
        graph.output(tuple(copied(name) for name in piece.outputs))
    return graph


def _with_twins(value: Any, *, twins: Mapping[int, nn.Parameter]) -> Any:
    """Return ``value`` with twins in the place of their originals: itself where it holds none."""
    if id(value) in twins:
        return twins[id(value)]
    if not isinstance(value, nn.Module) or not any(id(parameter) in twins for parameter in value.parameters()):
        return value
    shared = {id(tensor): tensor for tensor in (*value.parameters(), *value.buffers())}
    return copy.deepcopy(value, {**shared, **twins})


def retarget(module: fx.GraphModule, device: torch.device) -> None:
    """Move a stage to ``device``, and what its graph makes there too."""
    module.to(device)
    retarget_constants(module, device)


def retarget_constants(module: fx.GraphModule, device: torch.device) -> None:
    """Let what the graph of ``module`` makes be made on ``device`` (``device=`` constants)."""

    def moved(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    for node in module.graph.nodes:
        node.args = pytree.tree_map(moved, node.args)
        node.kwargs = pytree.tree_map(moved, node.kwargs)
    module.recompile()
