"""Where the time of a step goes, by rank and cause, and what its critical path is made of."""

from rich.table import Table

from autopipe.documents.timeline import Timeline
from autopipe.reporting.columns import add_figures, add_words, plain_table, shares_that_add_up
from autopipe.simulator.critical_path import critical_path, shares
from autopipe.simulator.idle import Idle, idle_times
from autopipe.units import format_share, format_time

CAUSES = ("busy", "warm-up", "cool-down", "link", "sending", "imbalance", "dependency", "overhead", "tail")


def idle_table(timeline: Timeline) -> Table:
    """Return the share of the step that each rank computes and, by cause, idles; causes that never occur left out."""
    rows = [(row.rank, parts_of(row)) for row in idle_times(timeline)]
    shown = [index for index, cause in enumerate(CAUSES) if cause == "busy" or any(parts[index] for _, parts in rows)]
    table = plain_table("Time of the step by cause")
    add_words(table, "rank")
    for index in shown:
        add_figures(table, CAUSES[index], "%")
    for rank, parts in rows:
        shares = shares_that_add_up(tuple(parts[index] for index in shown))
        table.add_row(str(rank), *(f"{100 * share:.1f}" for share in shares))
    return table


def parts_of(row: Idle) -> tuple[int, ...]:
    """Return the nanoseconds of one rank in the order of `CAUSES`."""
    return tuple(getattr(row, f"{cause.replace('-', '_')}_ns") for cause in CAUSES)


def path_sentence(timeline: Timeline) -> str:
    """Return what the critical path is made of, and which rank it spends most of its time on."""
    path = critical_path(timeline)
    if not path:
        return "No action, no critical path."
    total = path[-1].end_ns
    kinds = ", ".join(f"{format_time(time)} {kind}" for kind, time in shares(path).items() if time)
    on: dict[int, int] = {}
    for part in path:
        on[part.rank] = on.get(part.rank, 0) + part.end_ns - part.start_ns
    busiest = max(on, key=lambda rank: (on[rank], -rank))
    share = format_share(on[busiest] / total)
    return f"Critical path: {kinds}; {share} of it on rank {busiest}, {len(path)} parts."
