"""What crosses each place between two layers of a graph, and what forbids a cut there."""

from typing import NamedTuple

from autopipe.documents.graph import Graph, Value


class Crossing(NamedTuple):
    """The place before layer ``position``: the values sent over it, their bytes, and why it is no cut, if so."""

    position: int
    values: tuple[Value, ...]
    bytes: int
    forbidden: str | None


def crossings(graph: Graph) -> tuple[Crossing, ...]:
    """Return the places between the layers of ``graph``, the one before layer 1 first."""
    reasons = {cut.position: cut.reason for cut in graph.forbidden_cuts}
    places = []
    for position in range(1, len(graph.layers)):
        sent = (value for value in graph.values if not value.is_rebuilt)
        values = tuple(value for value in sent if value.producer < position <= max(value.consumers))
        places.append(Crossing(position, values, sum(value.bytes for value in values), reasons.get(position)))
    return tuple(places)


def words_for(values: tuple[Value, ...]) -> str:
    """Return the tensors among ``values`` in words, the largest first, equal ones together."""
    counts: dict[str, int] = {}
    for value in sorted(values, key=lambda value: -value.bytes):
        if value.shape is not None:
            word = f"{'x'.join(map(str, value.shape)) or 'scalar'} {value.dtype}"
            counts[word] = counts.get(word, 0) + 1
    return ", ".join(word if count == 1 else f"{count} of {word}" for word, count in counts.items())
