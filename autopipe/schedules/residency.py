"""What a rank holds while it computes: micro-batches in flight, posted receives and messages not yet sent."""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from autopipe.schedules.action import Action, Op, Schedule
from autopipe.schedules.comms import Edge, Kind, Message, edges_by_stage, rank_steps

Direction = tuple[int, int, bool]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank holds while it computes ``action``, beside the micro-batch in hand.

    The mappings are live views: they are right until the next holding is asked for.

    Attributes
    ----------
    in_flight : mapping of int to int
        Stage -> micro-batches forwarded and not yet backwarded, with the buffers they have received.
    posted : mapping of (int, int, bool) to int
        Message's (source, target, backward) -> receive buffers offered for later actions.
    unsent : mapping of (int, int, bool) to int
        Message's (source, target, backward) -> messages that may not have left.
    """

    action: Action
    in_flight: Mapping[int, int]
    posted: Mapping[Direction, int]
    unsent: Mapping[Direction, int]


class StageHolding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """How many of each thing the one stage of a rank holds at one moment, in a pipeline without skips.

    ``in_flight`` leaves out the micro-batch in hand; ``inputs`` and ``gradients`` are receive buffers posted
    ahead; ``outputs`` and ``input_gradients`` are messages that may not have left, ``unanswered`` the most of those
    for a stage that sends no gradient back, over all moments. ``forward`` tells whether it runs a forward then,
    which may climb less high than a backward.
    """

    in_flight: int
    inputs: int
    gradients: int
    outputs: int
    input_gradients: int
    unanswered: int = 0
    forward: bool = False


def unanswered(schedule: Schedule, rank: int) -> dict[int, int]:
    """Return, by stage of ``rank``, the most messages that have not left for a reader that sends no gradient back.

    The reader is the next stage or the last: those between lag less behind than the last.
    """
    last = schedule.stages - 1
    edges = {Edge(stage, reader, False) for stage in range(last) for reader in (stage + 1, last)}
    most: dict[int, int] = {}
    for holding in holdings(schedule, edges_by_stage(sorted(edges), schedule.stages), rank):
        for (source, _, _), count in holding.unsent.items():
            most[source] = max(most.get(source, 0), count)
    return most


def holdings(schedule: Schedule, near: tuple[tuple[Edge, ...], ...], rank: int) -> Iterator[Holding]:
    """Yield what ``rank`` holds at each of its actions; ``near`` is `comms.edges_by_stage`.

    A micro-batch between its I and its W counts as in flight. A forward-only schedule keeps none.
    """
    trains = any(action.op is not Op.FORWARD for action in schedule.actions[rank])
    in_flight: Counter[int] = Counter()
    posted: Counter[Direction] = Counter()
    unsent: Counter[Direction] = Counter()
    for step in rank_steps(schedule, near, rank):
        if step.message is not None:
            direction = _direction(step.message)
            if step.kind is Kind.POST:
                posted[direction] += 1
            elif step.kind is Kind.WAIT_RECEIVE:
                posted[direction] -= 1
            else:
                unsent[direction] += 1 if step.kind is Kind.SEND else -1
            continue
        action = step.action
        assert action is not None
        if action.op is not Op.FORWARD:
            in_flight[action.stage] -= 1
        yield Holding(action=action, in_flight=in_flight, posted=posted, unsent=unsent)
        if action.op is Op.INPUT_GRAD or (action.op is Op.FORWARD and trains):
            in_flight[action.stage] += 1


def _direction(message: Message) -> Direction:
    return message.source, message.target, message.backward
