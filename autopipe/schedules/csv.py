"""Schedules as comma-separated text, in the form that torch.distributed.pipelining reads and writes."""

import re

from autopipe.errors import ScheduleError
from autopipe.schedules.action import Action, Op, Schedule, from_rows


def to_csv(schedule: Schedule) -> str:
    """Return one line per rank; ``2F5`` is the forward of micro-batch 5 on stage 2, and I, W and B likewise."""
    rows = (",".join(f"{a.stage}{a.op}{a.micro_batch}" for a in actions) for actions in schedule.actions)
    return "\n".join(rows) + "\n"


def from_csv(text: str, *, name: str = "custom") -> Schedule:
    """Return the schedule in ``text``: what `to_csv` writes, empty cells (idle time) skipped.

    Raises
    ------
    ScheduleError
        If a cell is no computation, or a stage appears on no rank or on two.
    """
    lines = text.strip().splitlines()
    return from_rows([[_parse(cell) for cell in line.split(",") if cell.strip()] for line in lines], name=name)


def _parse(cell: str) -> Action:
    match = re.fullmatch(r"([0-9]{1,6})([FBIW])([0-9]{1,9})", cell.strip())
    if match is None:
        raise ScheduleError(
            f"{cell.strip()!r} is no computation: write for example 2F5 (stage 2, forward, micro-batch 5). Sends and "
            "receives are derived, so leave them out."
        )
    return Action(Op(match[2]), int(match[1]), int(match[3]))
