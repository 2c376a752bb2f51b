"""A number that differs between recordings at different sizes becomes an expression of sizes read from tensors."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from autopipe.recorder.notes import NOTE, Note, note_of


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """A size that is free: ``size`` in the recording itself, ``other`` in the variant number ``variant``."""

    size: int
    other: int
    variant: int


class Sizes:
    """Writes expressions of sizes into a graph that was recorded at several sizes.

    ``twins`` gives, for each variant at another size, the node of its recording that stands for each node of
    the graph. The sizes that a number or a dimension had over all recordings, its own first, are its trace:
    equal traces mean the same size.
    """

    def __init__(self, graph: fx.Graph, symbols: Sequence[Symbol], twins: Sequence[Mapping[fx.Node, fx.Node]]) -> None:
        self._graph = graph
        self._symbols = tuple(symbols)
        self._twins = tuple(twins)

    def integer(self, node: fx.Node, trace: tuple[int, ...]) -> fx.Node | None:
        """Return a new node before ``node`` whose value has ``trace``; None if no expression does.

        In this order: a size of a tensor that ``node`` reads, its number of elements, an affine function of one
        free size, or a multiple of all of them.
        """
        source = self._dimension(node.all_input_nodes, trace)
        if source is not None:
            return self._emit(node, "call_method", "size", source)
        changing = [symbol for symbol in self._symbols if trace[1 + symbol.variant] != trace[0]]
        if len(changing) == 1 and self._is_multiple(changing[0], trace):
            return self._affine(node, changing[0], trace)
        for tensor in node.all_input_nodes:
            if self._count(tensor) == trace:
                return self._emit(node, "call_method", "numel", (tensor,))
        if len(changing) == 1:
            return self._affine(node, changing[0], trace)
        return self._product(node, changing, trace)

    def inverse(self, node: fx.Node, trace: tuple[float, ...]) -> fx.Node | None:
        """Return a new node before ``node`` for a number that is inversely proportional to one free size."""
        changing = [symbol for symbol in self._symbols if trace[1 + symbol.variant] != trace[0]]
        if len(changing) != 1:
            return None
        symbol = changing[0]
        whole = trace[0] * symbol.size
        if whole / symbol.size != trace[0] or whole / symbol.other != trace[1 + symbol.variant]:
            return None
        size = self._read(node, symbol)
        return None if size is None else self._emit(node, "call_function", operator.truediv, (whole, size))

    def proportional(self, node: fx.Node, trace: tuple[float, ...]) -> fx.Node | None:
        """Return a new node before ``node`` for a number that is proportional to free sizes."""
        if all(item.is_integer() for item in trace):
            whole = self.integer(node, tuple(int(item) for item in trace))
            return None if whole is None else self._emit(node, "call_function", float, (whole,))
        changing = [symbol for symbol in self._symbols if trace[1 + symbol.variant] != trace[0]]
        if len(changing) != 1:
            return None
        symbol, other = changing[0], trace[1 + changing[0].variant]
        for factor in (trace[0] / symbol.size, other / symbol.other):
            if factor * symbol.size == trace[0] and factor * symbol.other == other:
                size = self._read(node, symbol)
                return None if size is None else self._emit(node, "call_function", operator.mul, (size, factor))
        return None

    def _is_multiple(self, symbol: Symbol, trace: tuple[int, ...]) -> bool:
        return trace[0] * symbol.other == trace[1 + symbol.variant] * symbol.size

    def _affine(self, node: fx.Node, symbol: Symbol, trace: tuple[int, ...]) -> fx.Node | None:
        factor, remainder = divmod(trace[1 + symbol.variant] - trace[0], symbol.other - symbol.size)
        size = self._read(node, symbol) if remainder == 0 else None
        if size is None:
            return None
        offset = trace[0] - factor * symbol.size
        if factor != 1:
            size = self._emit(node, "call_function", operator.mul, (size, factor))
        return self._emit(node, "call_function", operator.add, (size, offset)) if offset else size

    def _product(self, node: fx.Node, symbols: Sequence[Symbol], trace: tuple[int, ...]) -> fx.Node | None:
        whole = math.prod(symbol.size for symbol in symbols)
        if trace[0] % whole or not all(self._is_multiple(symbol, trace) for symbol in symbols):
            return None
        sizes = [self._read(node, symbol) for symbol in symbols]
        if None in sizes:
            return None
        product: Any = trace[0] // whole
        for size in sizes:
            product = size if product == 1 else self._emit(node, "call_function", operator.mul, (size, product))
        return product

    def _read(self, node: fx.Node, symbol: Symbol) -> fx.Node | None:
        """Return a new node that reads a free size from the nearest tensor before ``node`` that has it."""
        trace = [symbol.size] * (len(self._twins) + 1)
        trace[1 + symbol.variant] = symbol.other
        source = self._dimension(node.all_input_nodes, tuple(trace))
        before = node.prev
        while source is None and before.op != "root":
            source = self._dimension([before], tuple(trace))
            before = before.prev
        return None if source is None else self._emit(node, "call_method", "size", source)

    def _dimension(self, nodes: Sequence[fx.Node], trace: tuple[int, ...]) -> tuple[fx.Node, int] | None:
        """Return the first dimension of the first of ``nodes`` whose size has ``trace``."""
        for node in nodes:
            for dimension, sizes in enumerate(zip(*self._shapes(node), strict=False)):
                if sizes == trace:
                    return node, dimension
        return None

    def _count(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self._shapes(node))

    def _shapes(self, node: fx.Node) -> list[tuple[int, ...]]:
        """Return the shapes of a tensor over all recordings; nothing for what is no tensor, or a parameter."""
        found = [note_of(node).shape] + [note_of(twin[node]).shape for twin in self._twins if node in twin]
        shapes = [shape for shape in found if shape is not None]
        return shapes if len(shapes) == len(self._twins) + 1 and node.op != "get_attr" else []

    def _emit(self, reader: fx.Node, op: str, target: Any, args: tuple[Any, ...]) -> fx.Node:
        with self._graph.inserting_before(reader):
            node = self._graph.create_node(op, target, args, {})
        node.meta[NOTE] = Note(owner=note_of(reader).owner)
        return node
