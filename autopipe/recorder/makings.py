"""Some values are cheaper to make again in a stage than to send: masks and the like, made of little."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import fx

from autopipe.recorder.functions import is_random
from autopipe.recorder.glue import enter_autocast, exit_autocast
from autopipe.recorder.notes import note_of

# Memory moves ten times and more what a link does, and a function reads as much as it writes.
_LEAST_SAVING = 4
_MOST_WORK = 16


@dataclass(frozen=True, kw_only=True)
class Making:
    """How a value is made again: the nodes that do it, in graph order, and the values that have to be sent for it."""

    steps: tuple[fx.Node, ...]
    sources: tuple[fx.Node, ...]


def find_makings(graph: fx.Graph, crossing: Iterable[fx.Node]) -> Mapping[fx.Node, Making]:
    """Return how those values of ``crossing`` are made that stages had better make again than receive.

    Such a value needs no gradient and is made by functions alone, without chance, weights, autocast regions or memory
    that anything writes to. What has to be sent for it is at most a quarter of its bytes, and the tensors made on
    the way are at most sixteen times as many.
    """
    repeatable = _repeatable(graph)
    order = {node: place for place, node in enumerate(graph.nodes)}
    makings = {}
    for node in crossing:
        if node not in repeatable:
            continue
        steps, sources = _ancestry(node, repeatable)
        size = note_of(node).bytes
        sent, work = (sum(note_of(one).bytes for one in nodes) for nodes in (sources, steps))
        is_whole = all(one.op != "get_attr" and note_of(one).is_value for one in sources)
        needs_no_gradient = not any(note_of(one).requires_grad for one in sources)
        if is_whole and needs_no_gradient and sent * _LEAST_SAVING <= size and work <= size * _MOST_WORK:
            makings[node] = Making(
                steps=tuple(sorted(steps, key=order.__getitem__)), sources=tuple(sorted(sources, key=order.__getitem__))
            )
    return makings


def _ancestry(node: fx.Node, repeatable: set[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """Return the nodes that make ``node``, with itself, and those that they read and that cannot be repeated."""
    steps, sources, unread = {node}, set[fx.Node](), [node]
    while unread:
        for source in unread.pop().all_input_nodes:
            if source not in repeatable:
                sources.add(source)
            elif source not in steps:
                steps.add(source)
                unread.append(source)
    return steps, sources


def _repeatable(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes whose function gives the same tensor wherever it is called with the same arguments."""
    written = frozenset[int]().union(*(note_of(node).writes for node in graph.nodes if node.op != "output"))
    found = set()
    regions = 0
    for node in graph.nodes:
        regions += (node.target is enter_autocast) - (node.target is exit_autocast)
        if regions or node.op not in ("call_function", "call_method") or node.is_impure() or is_random(node.target):
            continue
        note = note_of(node)
        is_fixed = note.shape is not None and not note.requires_grad and not note.draws and not note.writes
        if is_fixed and note.is_value and note.storage not in written:
            found.add(node)
    return found
