"""A cut is a place between two nodes of a recorded graph; here is which are legal and what crosses each."""

from dataclasses import dataclass
from itertools import accumulate

from torch import fx

from autopipe.recorder import glue
from autopipe.recorder.notes import note_of

_ENTERS = (glue.enter_grad_mode, glue.enter_autocast)
_EXITS = (glue.exit_grad_mode, glue.exit_autocast)


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """The places of a graph: place k is before ``steps[k]``, the k-th node that computes something.

    ``bytes`` and ``is_legal`` are by place; place 0 is the beginning and no cut.
    """

    steps: tuple[fx.Node, ...]
    bytes: tuple[int, ...]
    is_legal: tuple[bool, ...]


def find_cuts(graph: fx.Graph) -> Cuts:
    """Return the places between the nodes of ``graph``.

    A place is illegal inside an open grad-mode or autocast region, where something crosses that is neither
    tensor nor plain value, between a leaf and the reading of what it left on an attribute, and between a tensor
    and an in-place write to its memory that a later reader of the tensor must see.
    """
    steps = tuple(node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output"))
    index = {node: place for place, node in enumerate(steps)}
    last_use = {node: max((index.get(user, len(steps)) for user in node.users), default=-1) for node in graph.nodes}
    begins, ends = [0] * (len(steps) + 2), [0] * (len(steps) + 2)
    forbidden: list[tuple[int, int]] = []
    for node in graph.nodes:
        if node.op in ("get_attr", "output"):
            continue
        made = index.get(node, -1)
        note = note_of(node)
        if made + 1 <= last_use[node]:
            begins[made + 1] += note.bytes
            ends[last_use[node] + 1] += note.bytes
            if not note.is_value and made >= 0:
                forbidden.append((made + 1, last_use[node]))
    crossing = tuple(accumulate(begin - end for begin, end in zip(begins, ends, strict=True)))
    forbidden += _open_regions(steps) + _in_place_writes(graph, index, last_use)
    forbidden += [(index[node.args[0]] + 1, place) for place, node in enumerate(steps) if glue.is_reader(node)]
    closed = [0] * (len(steps) + 2)
    for first, last in forbidden:
        closed[first] += 1
        closed[last + 1] -= 1
    is_legal = tuple(count == 0 for count in accumulate(closed[: len(steps)]))
    return Cuts(steps=steps, bytes=crossing[: len(steps)], is_legal=is_legal)


def _open_regions(steps: tuple[fx.Node, ...]) -> list[tuple[int, int]]:
    """Return the places (first, last) inside regions that change how torch computes."""
    spans, opened = [], []
    for place, node in enumerate(steps):
        if node.target in _ENTERS:
            opened.append(place)
        elif node.target in _EXITS and opened:
            spans.append((opened.pop() + 1, place))
    return spans


def _in_place_writes(graph: fx.Graph, index: dict[fx.Node, int], last_use: dict[fx.Node, int]) -> list[tuple[int, int]]:
    """Return the places (first, last) that would part an in-place write from the memory that others read."""
    by_memory: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        storage = note_of(node).storage
        if storage is not None and node.op not in ("get_attr", "output"):
            by_memory.setdefault(storage, []).append(node)
    spans = []
    for writer, place in index.items():
        for identity in note_of(writer).writes:
            for value in by_memory.get(identity, ()):
                made = index.get(value, -1)
                if made < place < last_use[value] and made + 1 <= place:
                    spans.append((max(made + 1, 0), place))
    return spans
