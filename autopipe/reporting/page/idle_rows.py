"""Where each rank's time in the step goes, as a bar and in per cent that add up."""

from typing import NamedTuple

from markupsafe import Markup

from autopipe.documents.timeline import Timeline
from autopipe.reporting.columns import shares_that_add_up
from autopipe.reporting.idle_table import CAUSES, parts_of
from autopipe.reporting.page.charts import Part, bar
from autopipe.simulator.idle import idle_times
from autopipe.units import format_share, format_time


class IdleRow(NamedTuple):
    """One rank, or the mean of all."""

    name: str
    bar: Markup
    shares: tuple[str, ...]


class IdleTable(NamedTuple):
    """One timeline's causes, those that occur, and a row for each rank."""

    name: str
    causes: tuple[str, ...]
    rows: tuple[IdleRow, ...]


def idle_rows(name: str, timeline: Timeline) -> IdleTable:
    """Return the time of the step by cause, rank by rank, and on the mean rank where there are several."""
    found = [(str(one.rank), parts_of(one)) for one in idle_times(timeline)]
    shown = [index for index, cause in enumerate(CAUSES) if cause == "busy" or any(row[index] for _, row in found)]
    if len(found) > 1:
        found.append(
            ("mean", tuple(sum(column) // len(found) for column in zip(*(row for _, row in found), strict=True)))
        )
    rows = tuple(IdleRow(rank, _bar(row, timeline.step_ns), _shares(row, shown)) for rank, row in found)
    return IdleTable(name, tuple(CAUSES[index] for index in shown), rows)


def _shares(row: tuple[int, ...], shown: list[int]) -> tuple[str, ...]:
    return tuple(map(format_share, shares_that_add_up(tuple(row[index] for index in shown))))


def _bar(row: tuple[int, ...], step_ns: int) -> Markup:
    parts = [
        Part(amount, f"idle-{cause}", f"{cause} {format_time(amount)}")
        for cause, amount in zip(CAUSES, row, strict=True)
        if amount
    ]
    return bar(parts, step_ns)
