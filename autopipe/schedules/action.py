"""The one schedule language: a schedule is, per rank, a tuple of actions with a two-way text form."""

import functools
import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from autopipe.errors import ScheduleError
from autopipe.schedules.pace import Pace


class Op(StrEnum):
    """What an action computes for one stage and one micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRAD = "I"
    WEIGHT_GRAD = "W"


_WORDS = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.INPUT_GRAD: "input gradient",
    Op.WEIGHT_GRAD: "weight gradient",
}


class Action(msgspec.Struct, frozen=True, order=True, gc=False):
    """One computation: ``Action(Op.FORWARD, 0, 3)`` is ``F0.3``, the forward of micro-batch 3 on stage 0."""

    op: Op
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.op}{self.stage}.{self.micro_batch}"

    @property
    def words(self) -> str:
        """The action in words: ``F0.3`` is "the forward of micro-batch 3 on stage 0"."""
        return f"the {_WORDS[self.op]} of micro-batch {self.micro_batch} on stage {self.stage}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Return the action that ``text`` (for example ``F0.3``) names.

        Raises
        ------
        ScheduleError
            If the text is no action.
        """
        match = re.fullmatch(r"([FBIW])([0-9]{1,6})\.([0-9]{1,9})", text.strip())
        if match is None:
            raise ScheduleError(f"{text.strip()!r} is no action: write for example F0.3, with F, B, I or W.")
        return cls(Op(match[1]), int(match[2]), int(match[3]))


class Schedule(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What every rank computes, in order.

    Attributes
    ----------
    stage_ranks : tuple of int
        The rank of each stage, by stage index.
    actions : tuple of tuples of Action
        By rank.
    """

    name: str
    micro_batches: int
    stage_ranks: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def ranks(self) -> int:
        """The number of ranks, p."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """The number of stages, S."""
        return len(self.stage_ranks)

    @functools.cached_property
    def pace(self) -> Pace:
        """When each action begins if links are free; worked out once."""
        return Pace(self)

    @property
    def lines(self) -> tuple[str, ...]:
        """One line per rank, actions separated by spaces: what a plan carries of a fitted schedule."""
        return tuple(" ".join(str(action) for action in actions) for actions in self.actions)

    def to_text(self) -> str:
        """Return `lines` as one text."""
        return "\n".join(self.lines) + "\n"


def parse_schedule(text: str, *, name: str = "custom") -> Schedule:
    """Return the schedule that `Schedule.to_text` wrote (or a person did): one line per rank.

    Raises
    ------
    ScheduleError
        If a word is no action, or a stage appears on no rank or on two.
    """
    return from_lines(text.strip().splitlines(), name=name)


def from_lines(lines: Sequence[str], *, name: str) -> Schedule:
    """Return the schedule that `Schedule.lines` wrote.

    Raises
    ------
    ScheduleError
        If a word is no action, or a stage appears on no rank or on two.
    """
    return from_rows([[Action.parse(word) for word in line.split()] for line in lines], name=name)


def from_rows(rows: Sequence[Sequence[Action]], *, name: str) -> Schedule:
    """Return the schedule whose ranks run these rows of actions.

    Raises
    ------
    ScheduleError
        If a stage appears on no rank or on two.
    """
    actions = tuple(tuple(row) for row in rows)
    owner: dict[int, int] = {}
    for rank, row in enumerate(actions):
        for action in row:
            if owner.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"stage {action.stage} is on rank {owner[action.stage]} and, by {action}, on rank {rank}: "
                    "a stage has one rank."
                )
    stages = max(owner, default=-1) + 1
    if stages == 0 or len(owner) != stages:
        missing = sorted(set(range(stages)) - set(owner))[:5]
        raise ScheduleError(f"stages {missing} appear on no rank: number the stages 0, 1, 2, ... without gaps.")
    micro_batches = max(action.micro_batch for row in actions for action in row) + 1
    ranks = tuple(owner[stage] for stage in range(stages))
    return Schedule(name=name, micro_batches=micro_batches, stage_ranks=ranks, actions=actions)


def peak_in_flight(actions: tuple[Action, ...]) -> int:
    """Return the largest number of stage-micro-batches of one rank that are forwarded and not yet backwarded."""
    live = peak = 0
    for action in actions:
        if action.op is Op.FORWARD:
            live += 1
            peak = max(peak, live)
        elif action.op in (Op.BACKWARD, Op.WEIGHT_GRAD):
            live -= 1
    return peak
