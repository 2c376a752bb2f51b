"""A timeline becomes rows of small numbers that the page's script draws."""

from typing import Any

from autopipe.documents.timeline import Lane, RankTimeline, Timeline
from autopipe.schedules.action import Action, Op

KINDS = (Op.FORWARD, Op.BACKWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD)
OPTIMIZER = len(KINDS)
RESOLUTION = 1 << 22


def track(name: str, timeline: Timeline) -> dict[str, Any]:
    """Return one timeline for the script.

    Returns
    -------
    dict
        ``tick_ns`` is the unit of all times; each of ``ranks`` a flat list of five numbers a span: kind (index into
        `KINDS`, `OPTIMIZER` behind them), stage, micro-batch, ticks since the span before ended, ticks it lasts.
    """
    tick = max(1, timeline.step_ns // RESOLUTION)
    return {
        "name": name,
        "step_ns": timeline.step_ns,
        "tick_ns": tick,
        "ranks": [_flat(rank, tick) for rank in timeline.ranks],
    }


def _flat(rank: RankTimeline, tick: int) -> list[int]:
    numbers: list[int] = []
    end = 0
    for span in rank.spans:
        if span.lane not in (Lane.COMPUTE, Lane.OPTIMIZER):
            continue
        kind, stage, micro_batch = OPTIMIZER, 0, 0
        if span.lane is Lane.COMPUTE:
            action = Action.parse(span.label)
            kind, stage, micro_batch = KINDS.index(action.op), action.stage, action.micro_batch
        begin, finish = span.start_ns // tick, span.end_ns // tick
        numbers += (kind, stage, micro_batch, begin - end, finish - begin)
        end = finish
    return numbers
