"""A timeline as text: one row a rank, rank 0 on top, time to the right, scaled to the width at hand.

A box stands for an action and is as long as it took::

    rank 0 |F0--F1--        B0======    B1======| 66.7 %
    rank 1 |    F0--B0======F1--B1======        | 66.7 %
"""

from rich.text import Text

from autopipe.documents.timeline import Lane, RankTimeline, Timeline
from autopipe.reporting.colours import stage_colour
from autopipe.schedules.action import Action, Op
from autopipe.simulator.metrics import busy_ns
from autopipe.units import format_share, format_time

NARROWEST = 10
WHOLE = "F forward, B backward"
PARTS = "F forward, I and W the backward's two parts"
LEGEND = "{}, with the micro-batch's number, o optimizer, blank idle.\nBusy share at the end. One column is {}."


def timeline_text(timeline: Timeline, *, width: int = 80, axis_ns: int | None = None) -> Text:
    """Return ``timeline`` as one row a rank, ``width`` columns wide.

    Parameters
    ----------
    timeline : Timeline
    width : int
        Columns for the whole line, name and busy share included.
    axis_ns : int, optional
        The time at the right end; the timeline's own step by default. Two timelines that are drawn with
        the same axis can be compared by eye.

    Returns
    -------
    Text
        An axis line, one line a rank, a legend. An action too short for one column is not drawn; one of a
        single column shows its letter only. Stage numbers are shown where a rank has several stages.
    """
    end_ns = max(axis_ns or 0, timeline.step_ns, 1)
    names = [f"rank {rank.rank} |" for rank in timeline.ranks]
    margin = max((len(name) for name in names), default=0)
    columns = max(width - margin - len("| 100.0 %"), NARROWEST)
    start, end = "0", format_time(end_ns)
    text = Text(" " * margin + start + end.rjust(columns - len(start)) + "\n")
    for name, rank in zip(names, timeline.ranks, strict=True):
        text.append(name.rjust(margin))
        text.append_text(_row(rank, columns, end_ns))
        text.append(f"| {format_share(busy_share(rank, timeline.step_ns))}\n")
    split = any(span.label.startswith("W") for rank in timeline.ranks for span in rank.spans)
    text.append(LEGEND.format(PARTS if split else WHOLE, format_time(end_ns / columns)))
    return text


def busy_share(rank: RankTimeline, step_ns: int) -> float | None:
    """Return the share of the step in which ``rank`` computes, its optimizer included; None for an empty step."""
    return busy_ns(rank) / step_ns if step_ns else None


def _row(rank: RankTimeline, columns: int, end_ns: int) -> Text:
    drawn = [span for span in rank.spans if span.lane in (Lane.COMPUTE, Lane.OPTIMIZER)]
    actions = [Action.parse(span.label) if span.lane is Lane.COMPUTE else None for span in drawn]
    several = len({action.stage for action in actions if action is not None}) > 1
    row = Text()
    for span, action in zip(drawn, actions, strict=True):
        first, last = _column(span.start_ns, columns, end_ns), _column(span.end_ns, columns, end_ns)
        first = max(first, len(row.plain))
        if last <= first:
            continue
        row.append(" " * (first - len(row.plain)))
        style = stage_colour(action.stage) if action is not None else "dim"
        row.append(_box(action, last - first, several), style=style)
    row.append(" " * (columns - len(row.plain)))
    return row


def _column(time_ns: int, columns: int, end_ns: int) -> int:
    return min(round(time_ns * columns / end_ns), columns)


def _box(action: Action | None, width: int, several: bool) -> str:
    if action is None:
        return "o" * width
    fill = "-" if action.op is Op.FORWARD else "="
    label = str(action) if several else f"{action.op}{action.micro_batch}"
    return (label if len(label) <= width else str(action.op)).ljust(width, fill)
