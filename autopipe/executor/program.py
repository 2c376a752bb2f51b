"""A program is a schedule made ready to run: lowered to steps and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopipe.schedules.action import Action, Op, Schedule, peak_in_flight
from autopipe.schedules.check import check
from autopipe.schedules.comms import Edge, Message, Step, edges_by_stage, rank_steps, reads, writes


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The messages that an action reads and writes, and what the stage's forward of the same micro-batch read."""

    reads: tuple[Message, ...]
    writes: tuple[Message, ...]
    forward_reads: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """The steps of one rank, each with its text form, and the rank's peak of in-flight micro-batches.

    ``exchanges`` gives each action's messages, ``last_backwards`` for each stage the action after which its
    gradients are complete.
    """

    steps: tuple[tuple[Step, str], ...]
    exchanges: dict[Action, Exchange]
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
    near = edges_by_stage(edges, schedule.stages)
    return Program(
        steps=tuple((step, str(step)) for step in rank_steps(schedule, near, rank)),
        exchanges={action: _exchange(action, near[action.stage]) for action in schedule.actions[rank]},
        peak_in_flight=peak_in_flight(schedule.actions[rank]),
        last_backwards={
            action.stage: action for action in schedule.actions[rank] if action.op in (Op.BACKWARD, Op.WEIGHT_GRAD)
        },
    )


def _exchange(action: Action, edges: Sequence[Edge]) -> Exchange:
    forward = Action(Op.FORWARD, action.stage, action.micro_batch)
    return Exchange(
        reads=tuple(reads(action, edges)),
        writes=tuple(writes(action, edges)),
        forward_reads=tuple(reads(forward, edges)),
    )


NO_PROGRAM = Program(steps=(), exchanges={}, peak_in_flight=0, last_backwards={})
"""What a rank runs in a step for which its replica has no samples."""

ScheduleMaker = Callable[[int], Schedule]
