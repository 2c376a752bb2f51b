"""A backward is split in two: gradients of a stage's inputs first (I), gradients of its weights later (W)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


@dataclass
class _Entrance:
    """Where the weight-gradient part enters the graph: a node, its outputs that get gradients, its weights' leaves."""

    node: Node
    outputs: list[int] = field(default_factory=list)
    leaves: list[Node] = field(default_factory=list)


@dataclass
class Deferred:
    """The weight-gradient part of one backward, to be run once: roots, their gradients, and the weights wanted.

    ``None`` for the weights stands for all.
    """

    parts: list[tuple[list[GradientEdge], list[Tensor], list[Tensor] | None]]

    def run(self) -> None:
        """Add the weights' gradients to their ``.grad``, letting go of the graph on the way."""
        self.parts.reverse()
        while self.parts:
            roots, gradients, weights = self.parts.pop()
            torch.autograd.backward(roots, gradients, inputs=weights)


def input_gradients(roots: Sequence[GradientEdge], gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> Deferred:
    """Run the part of a backward that leads to ``inputs``, set their ``.grad``, and return the rest, deferred.

    Parameters
    ----------
    roots, gradients : sequences
        What ``torch.autograd.backward`` takes.
    inputs : sequence of Tensor
        The leaves behind a stage's inputs; if there are none, all is deferred.

    Notes
    -----
    A node is an *entrance* if it lies on a way to the inputs and leads to weights by another way. One engine
    run goes all ways to the inputs and keeps, as it passes, the gradients that arrive at entrances;
    `Deferred.run` enters there, and goes only the ways to the weights. Where a weight hangs on two entrances
    its gradient would be summed in another order, so then nothing is deferred.

    References
    ----------
    Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2: B = I + W.
    """
    if not inputs:
        return Deferred([(list(roots), list(gradients), None)])
    entrances = _entrances(roots, {get_gradient_edge(tensor).node for tensor in inputs})
    leaves = [leaf for entrance in entrances for leaf in entrance.leaves]
    if len(set(leaves)) < len(leaves):
        torch.autograd.backward(list(roots), list(gradients))
        return Deferred([])
    edges = [GradientEdge(entrance.node, output) for entrance in entrances for output in entrance.outputs]
    goals = [*(get_gradient_edge(tensor) for tensor in inputs), *edges]
    arrived = torch.autograd.grad(list(roots), goals, list(gradients), retain_graph=True, allow_unused=True)
    for tensor, gradient in zip(inputs, arrived, strict=False):
        tensor.grad = gradient
    gradient_at = dict(zip(((edge.node, edge.output_nr) for edge in edges), arrived[len(inputs) :], strict=True))
    parts: list[tuple[list[GradientEdge], list[Tensor], list[Tensor] | None]] = []
    for entrance in entrances:
        reached = [output for output in entrance.outputs if gradient_at[entrance.node, output] is not None]
        if reached:
            enter = [GradientEdge(entrance.node, output) for output in reached]
            weights = [leaf.variable for leaf in entrance.leaves]  # type: ignore[attr-defined]
            parts.append((enter, [gradient_at[entrance.node, output] for output in reached], weights))
    return Deferred(parts)


def _entrances(starts: Sequence[GradientEdge], goals: set[Node]) -> list[_Entrance]:
    """Return the entrances of a graph in the order in which a backward meets them first."""
    order = _post_order([edge.node for edge in starts])
    leads = set(goals)
    for node in order:
        if any(child in leads for child, _ in node.next_functions):
            leads.add(node)
    found: dict[Node, _Entrance] = {}
    for node in reversed(order):
        off = [child for child, _ in node.next_functions if child is not None and child not in leads]
        if node in leads and node not in goals and off:
            leaves = [leaf for leaf in _post_order(off) if hasattr(leaf, "variable")]
            if leaves:
                found[node] = _Entrance(node, leaves=leaves)
    for edge in starts:
        if edge.node not in leads and edge.node not in found:
            leaves = [leaf for leaf in _post_order([edge.node]) if hasattr(leaf, "variable")]
            found[edge.node] = _Entrance(edge.node, leaves=leaves)
    edges: list[tuple[Node | None, int]] = [(edge.node, edge.output_nr) for edge in starts]
    edges += [edge for node in reversed(order) if node in leads for edge in node.next_functions]
    for entered, output in dict.fromkeys(edges):
        if entered is not None and entered in found:
            found[entered].outputs.append(output)
    return list(found.values())


def _post_order(roots: Sequence[Node]) -> list[Node]:
    """Return all nodes below ``roots``, each after its children."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in reversed(node.next_functions) if child is not None]
    return order
