"""Whereabouts are what a rank does at this moment, and for how long: read by the watchdog while the rank works."""

import time
from collections import deque
from enum import StrEnum

import msgspec

from autopipe.executor.deadlines import Deadlines
from autopipe.schedules.action import Action, Op
from autopipe.schedules.comms import Kind, Message, Step

_REMEMBERED_STEPS = 10
_NAMES = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.INPUT_GRAD: "input gradient",
    Op.WEIGHT_GRAD: "weight gradient",
}


class Doing(StrEnum):
    """What sort of thing a rank does; nothing says how long it may be busy."""

    BUSY = "busy"
    COMPUTING = "computing"
    WAITING = "waiting"
    OUTSIDE = "outside"
    ENDED = "ended"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank was when it was asked.

    Parameters
    ----------
    what : str
        In words: an action, a message, "the end of the step".
    peer : int, optional
        The rank of the same replica that it waits for, where it is one.
    step : int
        How many steps it has begun.
    longest_s : float, optional
        The longest action of the last measured steps.
    """

    doing: Doing
    what: str
    age_s: float
    limit_s: float
    step: int
    peer: int | None = None
    longest_s: float | None = None


class Whereabouts:
    """Where one rank is: its own thread says so, others read.

    One assignment tells a place, so that no reader sees half of it.

    Attributes
    ----------
    stage_ranks : tuple of int
        The rank of each stage, once there are stages.
    """

    def __init__(self, *, deadlines: Deadlines | None = None) -> None:
        self.stage_ranks: tuple[int, ...] = ()
        self.deadlines = deadlines if deadlines is not None else Deadlines()
        self.steps = 0
        self._durations: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._longest = 0.0
        self._is_measured = True
        self._now: tuple[Doing, Step | str, float, int | None] = (
            Doing.OUTSIDE,
            "before its first step",
            time.monotonic(),
            None,
        )

    def begin(self) -> None:
        """Say that a step begins."""
        self.steps += 1
        self._longest, self._is_measured = 0.0, True
        self.wait("the other ranks, to begin the step")

    def expect_compilation(self) -> None:
        """Say that this step takes as long as it takes: its inputs have new shapes."""
        self._is_measured = False

    def be(self, doing: Doing, what: Step | str, *, peer: int | None = None) -> None:
        """Say what the rank does from now on."""
        now = time.monotonic()
        if self._now[0] is Doing.COMPUTING:
            self._longest = max(self._longest, now - self._now[2])
        self._now = (doing, what, now, peer)

    def compute(self, what: Step | str) -> None:
        """Say what the rank computes from now on."""
        self.be(Doing.COMPUTING, what)

    def wait(self, what: Step | str, *, peer: int | None = None) -> None:
        """Say what the rank waits for from now on, and which rank of its replica will bring it, where one will."""
        self.be(Doing.WAITING, what, peer=peer)

    def leave(self, what: str = "between steps") -> None:
        """Say that the rank is in the user's own code again."""
        self.be(Doing.OUTSIDE, what)

    def end_step(self) -> None:
        """Say that the step has been measured to its end."""
        self.leave()
        if self._is_measured or self._durations:
            self._durations.append(self._longest)

    @property
    def is_inside(self) -> bool:
        """Whether the rank is in a step or a collective call."""
        return self._now[0] is not Doing.OUTSIDE

    def place(self) -> Place:
        """Return where the rank is now."""
        doing, what, since, peer = self._now
        longest = max(self._durations) if self._durations and self._is_measured else None
        is_message = isinstance(what, Step) and what.message is not None
        return Place(
            doing=doing,
            what=_in_words(what),
            age_s=time.monotonic() - since,
            limit_s=self.deadlines.idle_s if doing is Doing.OUTSIDE else self.deadlines.limit_s(longest),
            step=self.steps,
            peer=self._peer(what) if is_message else peer,
            longest_s=longest,
        )

    def _peer(self, step: Step | str) -> int | None:
        assert isinstance(step, Step)
        assert step.message is not None
        is_sending = step.kind in (Kind.SEND, Kind.WAIT_SEND)
        return self.stage_ranks[step.message.target if is_sending else step.message.source]


def _in_words(what: Step | str) -> str:
    if isinstance(what, str):
        return what
    if what.action is not None:
        return _action(what.action)
    assert what.message is not None
    if what.kind in (Kind.SEND, Kind.WAIT_SEND):
        return f"stage {what.message.target} to take {_message(what.message)}"
    return _message(what.message)


def _message(message: Message) -> str:
    kind = "gradient" if message.backward else "output"
    maker = f"{'B' if message.backward else 'F'}{message.source}.{message.micro_batch}"
    return f"the {kind} of {maker} (stage {message.source}, micro-batch {message.micro_batch})"


def _action(action: Action) -> str:
    return f"{action} ({_NAMES[action.op]} of stage {action.stage}, micro-batch {action.micro_batch})"
