"""Sends, receives and waits are derived from a schedule: one lowering that check, simulator and executor share."""

from collections import deque
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from autopipe.schedules.action import Action, Op, Schedule

LOOKAHEAD = 2
SEND_SLACK = 2


class Edge(msgspec.Struct, frozen=True, order=True):
    """Stage ``source`` makes values that stage ``target`` reads; ``gradient`` tells if a gradient comes back."""

    source: int
    target: int
    gradient: bool = True


class Message(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
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


class Step(msgspec.Struct, frozen=True, gc=False):
    """One step of a rank: an action to compute, or something to do with a message.

    ``POST`` offers a buffer for a message, ``SEND`` starts it, and the two waits end when it has arrived or
    left. Neither POST nor SEND blocks. Between two ranks, messages are posted in the order of their sends.
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
    schedule: Schedule, edges: Iterable[Edge], *, lookahead: int = LOOKAHEAD, slack: int = SEND_SLACK
) -> tuple[tuple[Step, ...], ...]:
    """Return, per rank, the steps that carry out ``schedule`` over ``edges``.

    A message between stages of one rank needs no step. A receive is posted ``lookahead`` actions before the
    action that reads it (so it arrives while others compute, and few buffers wait), a send starts right
    after its action, and a rank waits for a send at the latest when the answer to it has arrived, before it
    makes the message ``lag + slack`` places later on the same edge, or at the end of the step. The lag is
    how far the writer is ahead of the reader by the schedule itself (`Pace.lag`), so these waits hold few
    outputs and never close a circle.
    """
    near = edges_by_stage(edges, schedule.stages)
    return tuple(
        tuple(rank_steps(schedule, near, rank, lookahead=lookahead, slack=slack)) for rank in range(schedule.ranks)
    )


def edges_by_stage(edges: Iterable[Edge], stages: int) -> tuple[tuple[Edge, ...], ...]:
    """Return, per stage, the edges that begin or end at it."""
    near: list[list[Edge]] = [[] for _ in range(stages)]
    for edge in edges:
        near[edge.source].append(edge)
        near[edge.target].append(edge)
    return tuple(tuple(row) for row in near)


def rank_steps(
    schedule: Schedule,
    near: tuple[tuple[Edge, ...], ...],
    rank: int,
    *,
    lookahead: int = LOOKAHEAD,
    slack: int = SEND_SLACK,
) -> Iterator[Step]:
    """Yield the steps of one rank, as `lower` describes them; ``near`` is `edges_by_stage`."""
    ranks = schedule.stage_ranks
    remote = tuple(tuple(e for e in row if ranks[e.source] != ranks[e.target]) for row in near)
    actions = schedule.actions[rank]
    leaving: dict[tuple[int, int, bool], deque[Message]] = {}
    pending: dict[Message, None] = {}
    coming = {source: _coming(schedule, remote, source, rank) for source in _senders(ranks, remote, rank)}
    posted: set[Message] = set()
    awaited: deque[list[Message]] = deque()
    future = iter(actions)
    for action in actions:
        while len(awaited) <= lookahead and (later := next(future, None)) is not None:
            awaited.append(reads(later, remote[later.stage]))
            for message in awaited[-1]:
                source = coming[ranks[message.source]]
                while message not in posted:
                    # A channel without tags delivers in the order of sending, so what comes before is posted before.
                    earlier = next(source, message)
                    posted.add(earlier)
                    yield Step(Kind.POST, None, earlier)
                posted.discard(message)
        for message in awaited.popleft():
            yield Step(Kind.WAIT_RECEIVE, None, message)
            answered = Message(message.target, message.source, message.micro_batch, not message.backward)
            if answered in pending:
                del pending[answered]
                yield Step(Kind.WAIT_SEND, None, answered)
        outgoing = writes(action, remote[action.stage])
        for message in outgoing:
            way = (message.source, message.target, message.backward)
            line = leaving.setdefault(way, deque())
            if len(line) == schedule.pace.lag(*way) + slack:
                late = line.popleft()
                if late in pending:
                    del pending[late]
                    yield Step(Kind.WAIT_SEND, None, late)
            line.append(message)
        yield Step(Kind.COMPUTE, action)
        for message in outgoing:
            yield Step(Kind.SEND, None, message)
            pending[message] = None
    for message in pending:
        yield Step(Kind.WAIT_SEND, None, message)


def _senders(ranks: tuple[int, ...], remote: tuple[tuple[Edge, ...], ...], rank: int) -> set[int]:
    """Return the ranks whose stages exchange messages with stages of ``rank``."""
    ends = {(ranks[edge.source], ranks[edge.target]) for row in remote for edge in row}
    return {source for pair in ends if rank in pair for source in pair if source != rank}


def _coming(schedule: Schedule, remote: tuple[tuple[Edge, ...], ...], source: int, rank: int) -> Iterator[Message]:
    """Yield the messages from rank ``source`` to ``rank`` in the order in which they are sent."""
    ranks = schedule.stage_ranks
    between = tuple(tuple(e for e in row if rank in (ranks[e.source], ranks[e.target])) for row in remote)
    for action in schedule.actions[source]:
        yield from writes(action, between[action.stage])


def reads(action: Action, edges: Iterable[Edge]) -> list[Message]:
    """Return the messages that ``action`` needs before it can run."""
    op, stage, i = action.op, action.stage, action.micro_batch
    if op is Op.FORWARD:
        return [Message(edge.source, stage, i) for edge in edges if edge.target == stage]
    if op is Op.WEIGHT_GRAD:
        return []
    return [Message(edge.target, stage, i, True) for edge in edges if edge.source == stage and edge.gradient]


def writes(action: Action, edges: Iterable[Edge]) -> list[Message]:
    """Return the messages that ``action`` makes."""
    op, stage, i = action.op, action.stage, action.micro_batch
    if op is Op.FORWARD:
        return [Message(stage, edge.target, i) for edge in edges if edge.source == stage]
    if op is Op.WEIGHT_GRAD:
        return []
    return [Message(stage, edge.source, i, True) for edge in edges if edge.target == stage and edge.gradient]
