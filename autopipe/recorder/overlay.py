"""Recordings of one model, at two batch sizes and in both modes, are laid over each other into one graph."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from autopipe.recorder import glue
from autopipe.recorder.notes import NOTE, Note, note_of

FLAG = "autopipe_training"


def is_flag(node: fx.Node) -> bool:
    """Return whether a node reads the training flag of an open module: no module of the model itself."""
    return node.op == "call_module" and str(node.target).rpartition(".")[2] == FLAG


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A second recording: at batch size ``batch_size``, or (None) in the other of the modes train and eval."""

    graph: fx.Graph
    batch_size: int | None = None


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
    batch_size: int | None,
    model_memories: frozenset[int],
    trains: Callable[[str], bool],
) -> None:
    """Change ``graph`` so that it stands for all ``variants`` too.

    A number that differs with the batch size becomes an expression of a size read from a tensor beside it; a
    constant that differs with the mode becomes a choice by the module's training flag.

    Parameters
    ----------
    batch_size : int or None
        That of ``graph``.
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
    merger = _Merger(graph, nodes, variants, batch_size, trains)
    for node, *twins in zip(nodes, *others, strict=True):
        writes = frozenset().union(*(note_of(twin).writes for twin in twins)) & model_memories
        node.meta[NOTE] = replace(note_of(node), writes=note_of(node).writes | writes)
        node.args = merger.merge(node, node.args, [twin.args for twin in twins])
        node.kwargs = merger.merge(node, node.kwargs, [twin.kwargs for twin in twins])


class _Merger:
    def __init__(
        self,
        graph: fx.Graph,
        nodes: Sequence[fx.Node],
        variants: Sequence[Variant],
        batch_size: int | None,
        trains: Callable[[str], bool],
    ) -> None:
        self.graph = graph
        self.variants = variants
        self.twins = [dict(zip(nodes, variant.graph.nodes, strict=True)) for variant in variants]
        self.batch_size = batch_size or 0
        self.trains = trains
        sized = [index for index, variant in enumerate(variants) if variant.batch_size is not None]
        self.resized = self.twins[sized[0]] if sized else {}
        self.other_size = variants[sized[0]].batch_size or 0 if sized else 0

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
        index = differing[0]
        mode_and_size = len(differing) > 1
        if not mode_and_size and not isinstance(mine, fx.Node) and not isinstance(others[index], fx.Node):
            if self.variants[index].batch_size is None:
                return self._choice(node, mine, others[index])
            if type(mine) is type(others[index]) is int:
                return self._size(node, mine, others[index])
            if type(mine) is type(others[index]) is float:
                return self._share(node, mine, others[index])
        raise self._conflict(node, self.variants[index], mine, others[index])

    def _is_same(self, index: int, mine: Any, other: Any) -> bool:
        if isinstance(mine, fx.Node):
            return self.twins[index].get(mine) is other
        return type(mine) is type(other) and bool(mine == other or (mine != mine and other != other))

    def _choice(self, node: fx.Node, mine: Any, other: Any) -> fx.Node:
        owner = note_of(node).owner
        in_training = self.trains(owner)
        with self.graph.inserting_before(node):
            flag = self._emit(node, "call_module", f"{owner}.{FLAG}" if owner else FLAG, ())
            values = (mine, other) if in_training else (other, mine)
            return self._emit(node, "call_function", glue.choose, (flag, *values))

    def _size(self, node: fx.Node, mine: int, other: int) -> fx.Node:
        """Return a node for an integer that was ``mine`` at one batch size and ``other`` at the other."""
        source = self._dimension(node.all_input_nodes, mine, other)
        if source is not None:
            return self._read(node, source)
        factor, remainder = divmod(other - mine, self.other_size - self.batch_size)
        if factor * self.batch_size != mine and (whole := self._whole(node, mine, other)) is not None:
            return whole
        source = self._batch(node)
        if remainder or source is None:
            raise self._resize_conflict(node, mine, other)
        size = self._read(node, source)
        offset = mine - factor * self.batch_size
        with self.graph.inserting_before(node):
            if factor != 1:
                size = self._emit(node, "call_function", operator.mul, (size, factor))
            if offset:
                size = self._emit(node, "call_function", operator.add, (size, offset))
        return size

    def _whole(self, node: fx.Node, mine: int, other: int) -> fx.Node | None:
        """Return a node for an integer that is the number of elements of a tensor that ``node`` reads."""
        for source in node.all_input_nodes:
            shapes = note_of(source).shape, note_of(self.resized[source]).shape if source in self.resized else None
            if None not in shapes and tuple(math.prod(shape or ()) for shape in shapes) == (mine, other):
                with self.graph.inserting_before(node):
                    return self._emit(node, "call_method", "numel", (source,))
        return None

    def _share(self, node: fx.Node, mine: float, other: float) -> fx.Node:
        """Return a node for a number that is inversely proportional to the batch size."""
        whole = mine * self.batch_size
        source = self._batch(node)
        if source is None or whole / self.batch_size != mine or whole / self.other_size != other:
            raise self._resize_conflict(node, mine, other)
        size = self._read(node, source)
        with self.graph.inserting_before(node):
            return self._emit(node, "call_function", operator.truediv, (whole, size))

    def _batch(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        """Return the nearest tensor before ``node``, and its dimension, whose size is the batch size."""
        source = self._dimension(node.all_input_nodes, self.batch_size, self.other_size)
        before = node.prev
        while source is None and before.op != "root":
            source = self._dimension([before], self.batch_size, self.other_size)
            before = before.prev
        return source

    def _dimension(self, nodes: Sequence[fx.Node], mine: int, other: int) -> tuple[fx.Node, int] | None:
        for node in nodes:
            twin = self.resized.get(node)
            if twin is None or node.op == "get_attr":
                continue
            sizes = zip(note_of(node).shape or (), note_of(twin).shape or (), strict=False)
            for dimension, pair in enumerate(sizes):
                if pair == (mine, other):
                    return node, dimension
        return None

    def _read(self, node: fx.Node, source: tuple[fx.Node, int]) -> fx.Node:
        with self.graph.inserting_before(node):
            return self._emit(node, "call_method", "size", source)

    def _emit(self, reader: fx.Node, op: str, target: Any, args: tuple[Any, ...]) -> fx.Node:
        node = self.graph.create_node(op, target, args, {})
        node.meta[NOTE] = Note(owner=note_of(reader).owner)
        return node

    def _resize_conflict(self, node: fx.Node, mine: Any, other: Any) -> Conflict:
        variant = next(variant for variant in self.variants if variant.batch_size is not None)
        return self._conflict(node, variant, mine, other)

    def _conflict(self, node: fx.Node, variant: Variant, mine: Any, other: Any) -> Conflict:
        return Conflict(variant, note_of(node).owner, f"{_text(node)} is given {mine!r} in one, {other!r} in the other")


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
