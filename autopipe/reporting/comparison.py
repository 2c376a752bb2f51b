"""What was predicted stands beside what was measured, with the error in per cent."""

from typing import NamedTuple

from rich.table import Table

from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Timeline
from autopipe.errors import MismatchError
from autopipe.reporting.columns import add_figures, add_words, plain_table
from autopipe.simulator.metrics import busy_ns
from autopipe.units import format_bytes, format_time


class Pair(NamedTuple):
    """One quantity, predicted and measured; ``unit`` is ``ns`` or ``bytes``, None was not measured."""

    name: str
    predicted: int
    measured: int | None
    unit: str

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured, None where nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else None


def compare(plan: Plan, measured: Timeline) -> tuple[Pair, ...]:
    """Return step time, and busy time and peak memory of every rank, as ``plan`` predicts and as ``measured``.

    Raises
    ------
    MismatchError
        If the timeline has another number of ranks than the plan.
    """
    if len(measured.ranks) != len(plan.ranks):
        raise MismatchError(
            f"the plan has {len(plan.ranks)} ranks and the timeline {len(measured.ranks)}: "
            "they are not of the same run. Compare a plan with a timeline of its own pipeline."
        )
    busy = (
        Pair(f"rank {index} busy", plan.ranks[index].busy_ns, busy_ns(rank), "ns")
        for index, rank in enumerate(measured.ranks)
    )
    peak = (
        Pair(f"rank {index} peak memory", plan.ranks[index].peak_bytes, rank.peak_bytes, "bytes")
        for index, rank in enumerate(measured.ranks)
    )
    return (Pair("step", plan.step_ns, measured.step_ns, "ns"), *busy, *peak)


def comparison_table(pairs: tuple[Pair, ...]) -> Table:
    """Return ``pairs`` as a table: predicted, measured, error."""
    table = plain_table("Predicted and measured")
    add_words(table, "")
    for name in ("predicted", "measured", "error"):
        add_figures(table, name)
    for pair in pairs:
        show = format_time if pair.unit == "ns" else format_bytes
        error = "-" if pair.error is None else f"{100 * pair.error:+.1f} %"
        table.add_row(pair.name, show(pair.predicted), show(pair.measured), error)
    return table
