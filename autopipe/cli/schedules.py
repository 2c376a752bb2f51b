"""A schedule on the command line: one of the names, or a file of the user's own."""

import os
from typing import Any

import click

from autopipe.schedules.action import Schedule
from autopipe.schedules.files import read_schedule
from autopipe.schedules.named import NAMES, make


class ScheduleName(click.ParamType[str]):
    """One of the names, or the path of a file that is there."""

    name = "schedule"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is, if it names something."""
        if value not in NAMES and not os.path.isfile(value):
            known = ", ".join(map(repr, NAMES))
            self.fail(f"{value!r} is neither a file nor one of {known}.", param, ctx)
        return str(value)


def named_or_read(
    name: str, *, stages: int | None, micro_batches: int | None, virtual: int | None, depth: int
) -> Schedule:
    """Return the schedule that ``name`` and the options say.

    Raises
    ------
    click.UsageError
        If sizes are given for a file, which has its own, or missing for a name.
    AutopipeError
        If there is no such schedule.
    """
    if name not in NAMES:
        if (stages, micro_batches, virtual, depth) != (None, None, None, 0):
            raise click.UsageError(f"{name} is a file and has sizes of its own: leave them out.")
        return read_schedule(name)
    if stages is None or micro_batches is None:
        raise click.UsageError("a schedule by name needs --stages and --micro-batches.")
    return make(name, stages=stages, micro_batches=micro_batches, virtual=virtual, depth=depth)
