"""Recordings of one model, at several sizes and in both modes, are laid over each other into one graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from autopipe.recorder import glue
from autopipe.recorder.notes import NOTE, Note, note_of
from autopipe.recorder.sizes import Sizes, Symbol


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A second recording: with the size called ``symbol`` changed, or (None) in the other of train and eval."""

    graph: fx.Graph
    symbol: str | None = None
    size: int = 0
    other: int = 0


class Conflict(Exception):
    """A variant differs in a way that one graph cannot express, inside the open module ``module``."""

    def __init__(self, variant: Variant, module: str, what: str) -> None:
        super().__init__(what)
        self.variant = variant
        self.module = module
        self.what = what


def overlay(
    graph: fx.Graph,
    variants: Sequence[Variant],
    *,
    model_memories: frozenset[int],
    trains: Callable[[str], bool],
) -> None:
    """Change ``graph`` so that it stands for all ``variants`` too.

    A number that differs with a size becomes an expression of sizes read from a tensor beside it; a constant
    that differs with the mode becomes a choice by the module's training flag.

    Parameters
    ----------
    model_memories : frozenset of int
        The memories of the model's parameters and buffers, which are the same in all recordings.
    trains : callable
        Whether the module at a path was in training mode while ``graph`` was recorded.

    Raises
    ------
    Conflict
        If one differs in any other way; ``graph`` is then of no use.
    """
    nodes = list(graph.nodes)
    for variant in variants:
        for node, other in zip(nodes, variant.graph.nodes, strict=False):
            if node.op != other.op or node.target != other.target:
                raise Conflict(variant, _deeper(node, other), f"{_text(node)} in one, {_text(other)} in the other")
        if len(nodes) != len(variant.graph.nodes):
            raise Conflict(variant, "", f"{len(nodes)} operations in one, {len(variant.graph.nodes)} in the other")
    others = [list(variant.graph.nodes) for variant in variants]
    merger = _Merger(graph, nodes, variants, trains)
    for node, *twins in zip(nodes, *others, strict=True):
        writes = frozenset().union(*(note_of(twin).writes for twin in twins)) & model_memories
        draws = any(note_of(each).draws for each in (node, *twins))
        node.meta[NOTE] = replace(note_of(node), writes=note_of(node).writes | writes, draws=draws)
        node.args = merger.merge(node, node.args, [twin.args for twin in twins])
        node.kwargs = merger.merge(node, node.kwargs, [twin.kwargs for twin in twins])


class _Merger:
    def __init__(
        self, graph: fx.Graph, nodes: Sequence[fx.Node], variants: Sequence[Variant], trains: Callable[[str], bool]
    ) -> None:
        self.graph = graph
        self.variants = variants
        self.trains = trains
        self.twins = [dict(zip(nodes, variant.graph.nodes, strict=True)) for variant in variants]
        self.sized = [index for index, variant in enumerate(variants) if variant.symbol is not None]
        symbols = [
            Symbol(size=variants[index].size, other=variants[index].other, variant=place)
            for place, index in enumerate(self.sized)
        ]
        self.sizes = Sizes(graph, symbols, [self.twins[index] for index in self.sized])

    def merge(self, node: fx.Node, mine: Any, others: Sequence[Any]) -> Any:
        """Return the argument of ``node`` that is ``mine`` in its own recording and ``others`` in the variants."""
        if isinstance(mine, (tuple, list)) and all(_alike(mine, other) for other in others):
            return type(mine)(self.merge(node, item, items) for item, *items in zip(mine, *others, strict=True))
        if isinstance(mine, dict) and all(_alike(mine, other) for other in others):
            return {key: self.merge(node, mine[key], [other[key] for other in others]) for key in mine}
        if isinstance(mine, slice) and all(isinstance(other, slice) for other in others):
            pieces = ([getattr(piece, end) for piece in (mine, *others)] for end in ("start", "stop", "step"))
            return slice(*(self.merge(node, item, items) for item, *items in pieces))
        differing = [index for index, other in enumerate(others) if not self._is_same(index, mine, other)]
        if not differing:
            return mine
        found = None
        if differing == [index for index, variant in enumerate(self.variants) if variant.symbol is None]:
            found = self._choice(node, mine, others[differing[0]])
        elif set(differing) <= set(self.sized):
            trace = (mine, *(others[index] for index in self.sized))
            if all(type(item) is int for item in trace):
                found = self.sizes.integer(node, trace)
            elif all(type(item) is float for item in trace):
                found = self.sizes.inverse(node, trace) or self.sizes.proportional(node, trace)
        if found is None:
            variant, other = self.variants[differing[-1]], others[differing[-1]]
            what = f"{_text(node)} is given {mine!r} in one, {other!r} in the other"
            raise Conflict(variant, note_of(node).owner, what)
        return found

    def _is_same(self, index: int, mine: Any, other: Any) -> bool:
        if isinstance(mine, fx.Node):
            return self.twins[index].get(mine) is other
        return type(mine) is type(other) and bool(mine == other or (mine != mine and other != other))

    def _choice(self, node: fx.Node, mine: Any, other: Any) -> fx.Node | None:
        if isinstance(mine, fx.Node) or isinstance(other, fx.Node):
            return None
        owner = note_of(node).owner
        values = (mine, other) if self.trains(owner) else (other, mine)
        with self.graph.inserting_before(node):
            flag = self.graph.call_module(f"{owner}.{glue.FLAG}" if owner else glue.FLAG)
            choice = self.graph.call_function(glue.choose, (flag, *values))
        for made in (flag, choice):
            made.meta[NOTE] = Note(owner=owner)
        return choice


def _alike(mine: Any, other: Any) -> bool:
    """Return whether two containers have the same type and keys."""
    if type(mine) is not type(other) or len(mine) != len(other):
        return False
    return not isinstance(mine, dict) or list(mine) == list(other)


def _text(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _deeper(node: fx.Node, other: fx.Node) -> str:
    """Return the open module to blame where two recordings part: the inner one, or the one around both."""
    owners = sorted((note_of(node).owner, note_of(other).owner), key=len)
    if owners[0] == owners[1] or not owners[0] or owners[1].startswith(owners[0] + "."):
        return owners[1]
    shared: list[str] = []
    for part, other_part in zip(owners[0].split("."), owners[1].split("."), strict=False):
        if part != other_part:
            break
        shared.append(part)
    return ".".join(shared)
