"""A program is a schedule made ready to run: lowered to steps and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopipe.schedules.action import Schedule, peak_in_flight
from autopipe.schedules.check import check
from autopipe.schedules.comms import Edge, Step, lower


@dataclass(frozen=True, kw_only=True)
class Program:
    """The steps of one rank, and its peak of in-flight micro-batches."""

    schedule: Schedule
    steps: tuple[Step, ...]
    peak_in_flight: int


def make_program(schedule: Schedule, edges: Sequence[Edge], rank: int) -> Program:
    """Return the program of ``rank``.

    Raises
    ------
    ScheduleError
        If the schedule is incomplete, out of order or could deadlock.
    """
    check(schedule, edges)
    return Program(
        schedule=schedule,
        steps=lower(schedule, edges)[rank],
        peak_in_flight=peak_in_flight(schedule.actions[rank]),
    )


ScheduleMaker = Callable[[int], Schedule]
