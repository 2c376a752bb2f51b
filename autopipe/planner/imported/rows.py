"""Layers with sizes of what they hand on become a graph whose transfers take time over one kind of link."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopipe.planner.dag import Dag, Kind, Transfer
from autopipe.planner.imported.figures import MOST_BYTES, MOST_SECONDS, column


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layer: where it stands in its file, its times, what it hands on, what it holds, and who feeds it."""

    place: str
    name: str
    forward_s: float
    backward_s: float
    output_bytes: float
    state_bytes: float
    saved_bytes: float
    inputs: tuple[int, ...]


def graph_of_rows(
    rows: Sequence[Row], *, name: str, devices: int, memory_bytes: float | None, bytes_per_s: float
) -> Dag:
    """Return the graph of some layers.

    A layer's output goes once to every stage that reads it, and a gradient of the same size comes back from each
    reader where readers take time backward. A stage holds the state of its layers, and what they save once for
    each micro-batch in flight under 1F1B.
    """
    forward = column(((row.place + "forward time", row.forward_s) for row in rows), MOST_SECONDS)
    backward = column(((row.place + "backward time", row.backward_s) for row in rows), MOST_SECONDS)
    output = column(((row.place + "output size", row.output_bytes) for row in rows), MOST_BYTES)
    kind = Kind(
        seconds=forward + backward,
        fixed_bytes=column(((row.place + "state size", row.state_bytes) for row in rows), MOST_BYTES),
        in_flight_bytes=column(((row.place + "saved size", row.saved_bytes) for row in rows), MOST_BYTES),
    )
    edges = sorted({(source, at) for at, row in enumerate(rows) for source in row.inputs})
    readers: dict[int, list[int]] = {}
    for source, at in edges:
        readers.setdefault(source, []).append(at)
    transfers = []
    for source, targets in sorted(readers.items()):
        size = float(output[source])
        if size == 0:
            continue
        seconds = size / bytes_per_s
        transfers.append(Transfer(source=source, targets=tuple(targets), seconds=seconds, size_bytes=size))
        if backward.any():
            transfers += [
                Transfer(source=at, targets=(source,), seconds=seconds, size_bytes=size, backward_share=1.0)
                for at in targets
            ]
    return Dag(
        name=name,
        names=tuple(row.name for row in rows),
        plain=kind,
        recomputed=kind,
        can_recompute=np.zeros(len(rows), dtype=bool),
        forward_s=forward,
        edges=tuple(edges),
        transfers=tuple(transfers),
        devices=devices,
        memory_bytes=memory_bytes,
        stashes=True,
    )
