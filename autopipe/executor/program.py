"""A program is a schedule made ready to run: lowered to steps and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopipe.schedules.action import Action, Op, Schedule, peak_in_flight
from autopipe.schedules.check import check
from autopipe.schedules.comms import Edge, Step, edges_by_stage, rank_steps


@dataclass(frozen=True, kw_only=True)
class Program:
    """The steps of one rank, each with its text form, and the rank's peak of in-flight micro-batches.

    ``last_backwards`` gives for each stage the action after which its gradients are complete.
    """

    steps: tuple[tuple[Step, str], ...]
    peak_in_flight: int
    last_backwards: dict[int, Action]

    @property
    def has_split_backwards(self) -> bool:
        """Whether some backward comes in two parts."""
        return any(action.op is Op.WEIGHT_GRAD for action in self.last_backwards.values())


def make_program(schedule: Schedule, edges: Sequence[Edge], rank: int) -> Program:
    """Return the program of ``rank``.

    Raises
    ------
    ScheduleError
        If the schedule is incomplete, out of order or could deadlock.
    """
    check(schedule, edges)
    return Program(
        steps=tuple((step, str(step)) for step in rank_steps(schedule, edges_by_stage(edges, schedule.stages), rank)),
        peak_in_flight=peak_in_flight(schedule.actions[rank]),
        last_backwards={
            action.stage: action for action in schedule.actions[rank] if action.op in (Op.BACKWARD, Op.WEIGHT_GRAD)
        },
    )


NO_PROGRAM = Program(steps=(), peak_in_flight=0, last_backwards={})
"""What a rank runs in a step for which its replica has no samples."""

ScheduleMaker = Callable[[int], Schedule]
