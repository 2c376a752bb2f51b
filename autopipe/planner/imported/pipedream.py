"""PipeDream's ``graph.txt``: a line for each node with its profile, and an indented line for each edge.

::

    node1 -- Linear(...) -- forward_compute_time=1.2, backward_compute_time=2.4, activation_size=8.0, parameter_size=8.0
    node2 -- ReLU() -- forward_compute_time=0.1, backward_compute_time=0.1, activation_size=[8.0; 4.0], ...
        node1 -- node2

Times are milliseconds, sizes bytes (Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN
training", SOSP 2019).
"""

import re
from pathlib import Path

from autopipe.errors import DocumentError
from autopipe.planner.dag import Dag
from autopipe.planner.imported.figures import device_count, distinct, number
from autopipe.planner.imported.rows import Row, graph_of_rows

MILLISECOND_S = 1e-3
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")


def read_pipedream(
    content: bytes, *, origin: str, devices: int | None, memory_bytes: float | None, bytes_per_s: float
) -> Dag:
    """Return the graph in ``content``. A node holds its parameters and their gradients, and saves its activation.

    Raises
    ------
    DocumentError
        If a line is neither a node nor an edge; the message names the line.
    """
    nodes, edges = _lines(content, origin)
    index = distinct([name for _, name, _ in nodes], f"{origin}: nodes")
    inputs: dict[int, list[int]] = {}
    for place, first, second in edges:
        for name in (first, second):
            if name not in index:
                raise DocumentError(f"{place} names {name!r}, and no node has that name. Mend it, or add the node.")
        inputs.setdefault(index[second], []).append(index[first])
    rows = [
        Row(
            place=f"{place}: ",
            name=name,
            forward_s=fields[FIELDS[0]] * MILLISECOND_S,
            backward_s=fields[FIELDS[1]] * MILLISECOND_S,
            output_bytes=fields[FIELDS[2]],
            state_bytes=2 * fields[FIELDS[3]],
            saved_bytes=fields[FIELDS[2]],
            inputs=tuple(inputs.get(at, ())),
        )
        for at, (place, name, fields) in enumerate(nodes)
    ]
    return graph_of_rows(
        rows,
        name=Path(origin).stem,
        devices=device_count(devices, None, origin),
        memory_bytes=memory_bytes,
        bytes_per_s=bytes_per_s,
    )


def _lines(content: bytes, origin: str) -> tuple[list[tuple[str, str, dict[str, float]]], list[tuple[str, str, str]]]:
    """Return nodes as (place, name, fields) and edges as (place, first, second)."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{origin} is no text: {error}. Check the path.") from None
    nodes, edges = [], []
    for count, line in enumerate(lines, start=1):
        place = f"{origin}: line {count}"
        words = line.strip().split(" -- ")
        profile = next((word for word in words[1:] if word.startswith(FIELDS)), None)
        if profile is not None:
            nodes.append((place, words[0], _fields(profile, place)))
        elif line[:1].isspace() and len(words) == 2:
            edges.append((place, words[0], words[1]))
        elif line.strip():
            raise DocumentError(
                f"{place} is neither a node with its profile nor an indented edge: {line.strip()[:80]!r}."
            )
    return nodes, edges


def _fields(text: str, place: str) -> dict[str, float]:
    found = dict(_FIELD.findall(text))
    fields = {}
    for name in FIELDS:
        if name not in found:
            raise DocumentError(f"{place} has no {name}. A node's profile says {', '.join(FIELDS)}.")
        parts = found[name].strip("[]").split(";")
        fields[name] = sum(number(part.strip(), f"{place}: {name}") for part in parts)
    return fields
