"""Where the time of a step goes, by rank and cause, and what its critical path is made of."""

from rich.table import Table

from autopipe.documents.timeline import Timeline
from autopipe.reporting.columns import add_figures, add_words, plain_table
from autopipe.simulator.critical_path import critical_path, shares
from autopipe.simulator.idle import idle_times
from autopipe.units import format_share, format_time

CAUSES = ("busy", "warm-up", "cool-down", "link", "sending", "imbalance", "dependency", "overhead", "tail")


def idle_table(timeline: Timeline) -> Table:
    """Return the share of the step that each rank computes and, by cause, idles; causes that never occur left out."""
    rows = idle_times(timeline)
    figures = {cause: [getattr(row, f"{cause.replace('-', '_')}_ns") for row in rows] for cause in CAUSES}
    shown = [cause for cause in CAUSES if cause == "busy" or any(figures[cause])]
    table = plain_table("Time of the step by cause")
    add_words(table, "rank")
    for cause in shown:
        add_figures(table, cause)
    for index, row in enumerate(rows):
        parts = (figures[cause][index] for cause in shown)
        table.add_row(str(row.rank), *(format_share(part / max(1, timeline.step_ns)) for part in parts))
    return table


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
