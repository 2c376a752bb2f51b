"""A plain CSV of layers, one a row, in the order in which they run.

Columns, by the names in the first row: ``name``; ``forward_s`` and ``backward_s`` (or ``_ms``, ``_us``, ``_ns``);
``output_bytes``, what a layer hands on; ``state_bytes``, what its stage holds for it (parameters, gradients,
optimizer state); ``saved_bytes``, what it keeps for each micro-batch in flight; ``inputs``, the names of the layers
that feed it, separated by spaces: by default the row before. Only a forward time is needed.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from autopipe.errors import DocumentError
from autopipe.planner.dag import Dag
from autopipe.planner.imported.figures import device_count, distinct, number
from autopipe.planner.imported.rows import Row, graph_of_rows

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZES = ("output_bytes", "state_bytes", "saved_bytes")
COLUMNS = {"name", "inputs", *SIZES, *(f"{what}_{unit}" for what in ("forward", "backward") for unit in UNITS)}


def read_table(
    content: bytes, *, origin: str, devices: int | None, memory_bytes: float | None, bytes_per_s: float
) -> Dag:
    """Return the graph in ``content``.

    Raises
    ------
    DocumentError
        If a column is unknown or missing, or a cell holds no figure; the message names row and column.
    """
    rows = _cells(content, origin)
    names = [cells.get("name") or f"row {at}" for at, cells in enumerate(rows, start=1)]
    index = distinct(names, f"{origin}: rows")
    return graph_of_rows(
        [_row(at, cells, names[at], index, f"{origin}: row {at + 1}, ") for at, cells in enumerate(rows)],
        name=Path(origin).stem,
        devices=device_count(devices, None, origin),
        memory_bytes=memory_bytes,
        bytes_per_s=bytes_per_s,
    )


def _cells(content: bytes, origin: str) -> list[dict[str, str]]:
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True)
        lines = [[cell.strip() for cell in line] for line in reader if any(cell.strip() for cell in line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DocumentError(f"{origin} is no CSV: {error}. Check the path, or name its --format.") from None
    if not lines:
        raise DocumentError(f"{origin} is empty: its first row names the columns, for example name,forward_ms.")
    header, *body = lines
    unknown = sorted(set(header) - COLUMNS)
    if unknown or len(set(header)) < len(header):
        wrong = unknown[0] if unknown else "a column twice"
        raise DocumentError(f"{origin}: the first row has {wrong!r}. Columns are {', '.join(sorted(COLUMNS))}.")
    if not any(f"forward_{unit}" in header for unit in UNITS):
        raise DocumentError(
            f"{origin}: no column is a forward time. Add forward_s, forward_ms, forward_us or forward_ns."
        )
    for at, line in enumerate(body, start=1):
        if len(line) != len(header):
            raise DocumentError(f"{origin}: row {at} has {len(line)} cells and the first row {len(header)}. Mend it.")
    return [dict(zip(header, line, strict=True)) for line in body]


def _row(at: int, cells: Mapping[str, str], name: str, index: Mapping[str, int], place: str) -> Row:
    sizes = {column: number(cells.get(column) or "0", place + column) for column in SIZES}
    inputs: tuple[int, ...] = (at - 1,) if at > 0 else ()
    if "inputs" in cells:
        inputs = tuple(_input(word, index, place) for word in cells["inputs"].split())
    return Row(
        place=place,
        name=name,
        forward_s=_seconds("forward", cells, place),
        backward_s=_seconds("backward", cells, place),
        inputs=inputs,
        **sizes,
    )


def _seconds(what: str, cells: Mapping[str, str], place: str) -> float:
    total = 0.0
    for unit, seconds in UNITS.items():
        column = f"{what}_{unit}"
        total += number(cells.get(column) or "0", place + column) * seconds
    return total


def _input(word: str, index: Mapping[str, int], place: str) -> int:
    if word not in index:
        raise DocumentError(f"{place}inputs names {word!r}, and no row has that name. Mend it, or add the row.")
    return index[word]
