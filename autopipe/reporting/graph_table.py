"""A recorded model as a table: its layers, what crosses behind each, and what was called whole and why."""

from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autopipe.documents.graph import Graph
from autopipe.reporting.columns import add_figures, add_words, bytes_scale, plain_table
from autopipe.reporting.crossings import crossings, words_for
from autopipe.units import format_bytes


class Row(NamedTuple):
    """One row: layers ``first`` to ``last``, which are alike, their state together and what crosses behind each."""

    first: int
    last: int
    name: str
    kind: str
    state_bytes: int
    crossing_bytes: int
    crossing: str


def graph_report(graph: Graph, *, whole: Mapping[str, str] | None = None, unchecked: str | None = None) -> Group:
    """Return headline, table and remarks about a recorded model.

    Parameters
    ----------
    whole : mapping of str to str
        The modules that had to be called whole: path -> reason.
    unchecked : str, optional
        Why the graph was not compared with the model.
    """
    return Group(_headline(graph), "", _table(rows(graph)), "", *_remarks(graph, whole or {}, unchecked))


def rows(graph: Graph) -> tuple[Row, ...]:
    """Return the layers of ``graph`` in order; in a row of like layers with like crossings all share one row."""
    sizes = {parameter.name: parameter.bytes for parameter in graph.parameters}
    places = {place.position - 1: place for place in crossings(graph)}
    seen: set[str] = set()
    singles = []
    for index, layer in enumerate(graph.layers):
        # A tied parameter counts where it is read first, so that the column adds up.
        own = [name for name in (*layer.parameters, *layer.buffers) if name not in seen]
        seen.update(own)
        place = places.get(index)
        words = "" if place is None else "no cut: see below" if place.forbidden else words_for(place.values)
        moved = 0 if place is None else place.bytes
        state = sum(sizes.get(name, 0) for name in own)
        singles.append((layer.group, Row(index, index, layer.name, layer.kind, state, moved, words)))
    merged = []
    for _, run in groupby(singles, key=lambda item: (item[0], *item[1][3:])):
        alike = [row for _, row in run]
        first, last = alike[0], alike[-1]
        name = first.name if first is last else f"{first.name} to {last.name}"
        state = sum(row.state_bytes for row in alike)
        merged.append(first._replace(last=last.last, name=name, state_bytes=state))
    return tuple(merged)


def _headline(graph: Graph) -> Text:
    state = sum(parameter.bytes for parameter in graph.parameters)
    cuts = len(graph.layers) - 1 - len(graph.forbidden_cuts)
    return Text(
        f"{graph.model}: {_count(len(graph.layers), 'layer')} with {format_bytes(state)} of parameters and buffers, "
        f"{_count(cuts, 'legal cut')}, {_count(len(graph.nodes), 'node')}."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _table(rows: tuple[Row, ...]) -> Table:
    table = plain_table("Layers, and what crosses behind each")
    state = bytes_scale(tuple(row.state_bytes for row in rows))
    moved = bytes_scale(tuple(row.crossing_bytes for row in rows))
    add_figures(table, "#")
    add_words(table, "layer")
    add_words(table, "kind")
    add_figures(table, "state", state.unit)
    add_figures(table, "crosses", moved.unit)
    add_words(table, "tensors")
    for row in rows:
        number = str(row.first) if row.first == row.last else f"{row.first}-{row.last}"
        crossing = moved.format(row.crossing_bytes) if row.crossing else ""
        table.add_row(number, row.name, row.kind, state.format(row.state_bytes), crossing, row.crossing)
    return table


def _remarks(graph: Graph, whole: Mapping[str, str], unchecked: str | None) -> list[Text]:
    remarks = []
    for reason, cuts in groupby(graph.forbidden_cuts, key=lambda cut: cut.reason):
        positions = [cut.position for cut in cuts]
        place = f"layer {positions[0]}" if len(positions) == 1 else f"layers {positions[0]} to {positions[-1]}"
        remarks.append(f"No cut before {place}: {reason}.")
    for name, layers in graph.tied().items():
        remarks.append(f"Tied: {name} is read by layers {', '.join(map(str, layers))}.")
    remade = tuple(value for value in graph.values if value.is_rebuilt)
    if remade:
        remarks.append(
            f"Made again in each stage that reads it, which is cheaper than to send it: {words_for(remade)}."
        )
    if whole:
        remarks.append("Called whole, because a graph cannot hold what they do:")
        for reason, items in groupby(sorted(whole.items(), key=lambda item: item[1]), key=lambda item: item[1]):
            remarks.append(f"  {', '.join(path for path, _ in items)}: {reason}.")
    if not graph.batch_is_free:
        remarks.append("The batch size is as in the example: this model's graph depends on it, and checks it.")
    if unchecked is not None:
        remarks.append(f"Not compared with the model: {unchecked}.")
    else:
        remarks.append("Compared with the model: outputs and all gradients are equal.")
    return [Text(remark) for remark in remarks]
