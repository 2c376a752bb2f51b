"""A timeline becomes rows of small numbers that the page's script draws."""

from collections.abc import Mapping
from typing import Any

from autopipe.documents.timeline import Lane, RankTimeline, Timeline
from autopipe.reporting.page.gaps import gap_causes
from autopipe.schedules.action import Action, Op
from autopipe.simulator.idle import departures
from autopipe.simulator.metrics import makespan_ns

KINDS = (Op.FORWARD, Op.BACKWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD)
OPTIMIZER = len(KINDS)
RESOLUTION = 1 << 22


def track(name: str, timeline: Timeline) -> dict[str, Any]:
    """Return one timeline for the script.

    Returns
    -------
    dict
        ``tick_ns`` is the unit of all times; each of ``ranks`` a flat list of six numbers a span: kind (index into
        `KINDS`, `OPTIMIZER` behind them), stage, micro-batch, ticks since the span before ended, ticks it lasts, cause
        of the gap before it (index into `gaps.CAUSES`); behind the last span stands the cause of the gap up to the end.
    """
    tick = max(1, timeline.step_ns // RESOLUTION)
    departed, makespan = departures(timeline), makespan_ns(timeline)
    return {
        "name": name,
        "step_ns": timeline.step_ns,
        "tick_ns": tick,
        "ranks": [_flat(rank, tick, departed, makespan, timeline.step_ns) for rank in timeline.ranks],
    }


def _flat(rank: RankTimeline, tick: int, departed: Mapping[str, int], makespan: int, step_ns: int) -> list[int]:
    causes = gap_causes(rank, departed, makespan, step_ns)
    drawn = [span for span in rank.spans if span.lane in (Lane.COMPUTE, Lane.OPTIMIZER)]
    numbers: list[int] = []
    end = 0
    for span, cause in zip(drawn, causes, strict=False):
        kind, stage, micro_batch = OPTIMIZER, 0, 0
        if span.lane is Lane.COMPUTE:
            action = Action.parse(span.label)
            kind, stage, micro_batch = KINDS.index(action.op), action.stage, action.micro_batch
        begin, finish = span.start_ns // tick, span.end_ns // tick
        numbers += (kind, stage, micro_batch, begin - end, finish - begin, cause)
        end = finish
    return [*numbers, causes[-1]]
