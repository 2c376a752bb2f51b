"""Sends, receives and waits are derived from a schedule: one lowering that check, simulator and executor share."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from autopipe.schedules.action import Action, Op, Schedule

LOOKAHEAD = 2
SEND_WINDOW = 3


class Edge(msgspec.Struct, frozen=True, order=True):
    """Stage ``source`` makes values that stage ``target`` reads; ``gradient`` tells if a gradient comes back."""

    source: int
    target: int
    gradient: bool = True


class Message(msgspec.Struct, frozen=True, order=True):
    """The values of one edge for one micro-batch: activations forward, or their gradients ``backward``.

    ``source`` and ``target`` are the stages it travels between, in its own direction.
    """

    source: int
    target: int
    micro_batch: int
    backward: bool = False

    def __str__(self) -> str:
        return f"{'g' if self.backward else 'a'}{self.source}>{self.target}.{self.micro_batch}"


class Kind(StrEnum):
    """What a step of a lowered schedule does."""

    COMPUTE = "compute"
    POST = "post"
    WAIT_RECEIVE = "wait_receive"
    SEND = "send"
    WAIT_SEND = "wait_send"


class Step(msgspec.Struct, frozen=True):
    """One step of a rank: an action to compute, or something to do with a message.

    ``POST`` offers a buffer for a message, ``SEND`` starts it, and the two waits end when it has arrived or
    left. Neither POST nor SEND blocks.
    """

    kind: Kind
    action: Action | None = None
    message: Message | None = None

    def __str__(self) -> str:
        sign = {Kind.POST: "post ", Kind.WAIT_RECEIVE: "await ", Kind.SEND: "send ", Kind.WAIT_SEND: "sent "}
        return sign.get(self.kind, "") + str(self.action or self.message)


def chain(stages: int) -> tuple[Edge, ...]:
    """Return the edges of a pipeline without skips: every stage feeds the next."""
    return tuple(Edge(stage, stage + 1) for stage in range(stages - 1))


def lower(
    schedule: Schedule, edges: Iterable[Edge], *, lookahead: int = LOOKAHEAD, window: int = SEND_WINDOW
) -> tuple[tuple[Step, ...], ...]:
    """Return, per rank, the steps that carry out ``schedule`` over ``edges``.

    A message between stages of one rank needs no step. A receive is posted ``lookahead`` actions before the
    action that reads it (so it arrives while others compute, and few buffers wait), a send starts right
    after its action, and a rank waits for a send at the latest when the answer to it has arrived, before the
    forward (or backward) ``window`` micro-batches later on the same edge (one more for every stage that the
    edge skips, since its reader lags by as many), or at the end of the step.
    """
    edges = tuple(edges)
    return tuple(_lower_rank(schedule, edges, rank, lookahead, window) for rank in range(schedule.ranks))


def reads(action: Action, edges: Iterable[Edge]) -> tuple[Message, ...]:
    """Return the messages that ``action`` needs before it can run."""
    if action.op is Op.FORWARD:
        return tuple(Message(e.source, e.target, action.micro_batch) for e in edges if e.target == action.stage)
    if action.op in (Op.BACKWARD, Op.INPUT_GRAD):
        return tuple(
            Message(e.target, e.source, action.micro_batch, True)
            for e in edges
            if e.source == action.stage and e.gradient
        )
    return ()


def writes(action: Action, edges: Iterable[Edge]) -> tuple[Message, ...]:
    """Return the messages that ``action`` makes."""
    if action.op is Op.FORWARD:
        return tuple(Message(e.source, e.target, action.micro_batch) for e in edges if e.source == action.stage)
    if action.op in (Op.BACKWARD, Op.INPUT_GRAD):
        return tuple(
            Message(e.target, e.source, action.micro_batch, True)
            for e in edges
            if e.target == action.stage and e.gradient
        )
    return ()


def _lower_rank(
    schedule: Schedule, edges: tuple[Edge, ...], rank: int, lookahead: int, window: int
) -> tuple[Step, ...]:
    actions = schedule.actions[rank]
    near = tuple(e for e in edges if rank in (schedule.stage_ranks[e.source], schedule.stage_ranks[e.target]))
    remote = tuple(e for e in near if schedule.stage_ranks[e.source] != schedule.stage_ranks[e.target])
    steps: list[Step] = []
    pending: dict[Message, None] = {}
    posted = 0
    for position, action in enumerate(actions):
        while posted < len(actions) and posted <= position + lookahead:
            steps += (Step(Kind.POST, message=m) for m in reads(actions[posted], remote))
            posted += 1
        for message in reads(action, remote):
            steps.append(Step(Kind.WAIT_RECEIVE, message=message))
            answered = Message(message.target, message.source, message.micro_batch, not message.backward)
            _wait_sent(steps, pending, answered)
        outgoing = writes(action, remote)
        for message in outgoing:
            lag = window + abs(message.target - message.source) - 1
            late = Message(message.source, message.target, message.micro_batch - lag, message.backward)
            _wait_sent(steps, pending, late)
        steps.append(Step(Kind.COMPUTE, action=action))
        for message in outgoing:
            steps.append(Step(Kind.SEND, message=message))
            pending[message] = None
    steps += (Step(Kind.WAIT_SEND, message=message) for message in pending)
    return tuple(steps)


def _wait_sent(steps: list[Step], pending: dict[Message, None], message: Message) -> None:
    if message in pending:
        del pending[message]
        steps.append(Step(Kind.WAIT_SEND, message=message))
