"""A checkpoint as a table: what was trained, how far, and every tensor with the optimizer's state for it."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from autopipe.documents.checkpoint import Checkpoint
from autopipe.reporting.columns import add_figures, add_words, bytes_scale, figures_that_add_up, plain_table
from autopipe.units import format_bytes


class Row(NamedTuple):
    """One tensor of the model: its name, shape and dtype, its bytes, and those of the optimizer's state for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    own_bytes: int
    state_bytes: int


def checkpoint_report(document: Checkpoint, rows: Sequence[Row]) -> Group:
    """Return headline and table of a checkpoint whose tensors are ``rows``."""
    stages, ranks = len(document.stage_ranks), max(document.stage_ranks, default=0) + 1
    replicas = f", {document.replicas} replicas" if document.replicas > 1 else ""
    optimizers = " and ".join(document.optimizers) or "no optimizer"
    own, state = sum(row.own_bytes for row in rows), sum(row.state_bytes for row in rows)
    headline = (
        f"{document.model} at step {document.step}, with {optimizers}: {len(rows)} tensors, {format_bytes(own)}, and "
        f"{format_bytes(state)} of optimizer state.\n"
        f"Saved by {stages} stages on {ranks} ranks{replicas} ({document.schedule}, {document.micro_batches} "
        f"micro-batches), torch {document.torch_version}."
    )
    scale = bytes_scale(tuple(row.own_bytes for row in rows), tuple(row.state_bytes for row in rows))
    table = plain_table("Tensors")
    add_words(table, "name")
    add_words(table, "shape")
    add_words(table, "dtype")
    add_figures(table, "tensor", scale.unit)
    add_figures(table, "optimizer", scale.unit)
    tensors = figures_that_add_up(tuple(row.own_bytes for row in rows), scale)
    states = figures_that_add_up(tuple(row.state_bytes for row in rows), scale)
    for row, tensor, of_optimizer in zip(rows, tensors, states, strict=False):
        shape = " x ".join(map(str, row.shape)) or "number"
        table.add_row(row.name, shape, row.dtype, tensor, of_optimizer if row.state_bytes else "-")
    table.add_row("total", "", "", tensors[-1], states[-1], style="bold")
    tied = [f"{alias} is {name}" for alias, name in document.aliases.items()]
    return Group(Text(headline), "", table, *([Text(f"\nTied: {'; '.join(tied)}.")] if tied else []))
