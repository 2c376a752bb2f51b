"""A rank's actions from a pattern: operations in order, with the micro-batches counted in."""

from collections import Counter, deque
from collections.abc import Iterable

from autopipe.schedules.action import Action, Op

Word = tuple[Op, int]


def follow(pattern: Iterable[Word], micro_batches: int) -> tuple[Action, ...]:
    """Return the actions of a pattern of (operation, stage), those of micro-batches that do not exist left out.

    The k-th F of a stage is that of micro-batch k, and so is its k-th B or I; a W is that of the rank's oldest
    I without one, whichever stage the word names. Leaving micro-batches out keeps a schedule in order and
    free of deadlock, as far as it was.
    """
    forwards: Counter[int] = Counter()
    backwards: Counter[int] = Counter()
    open_: deque[tuple[int, int]] = deque()
    actions = []
    for op, stage in pattern:
        if op is Op.WEIGHT_GRAD:
            stage, micro_batch = open_.popleft()
        else:
            counter = forwards if op is Op.FORWARD else backwards
            micro_batch = counter[stage]
            counter[stage] += 1
            if op is Op.INPUT_GRAD:
                open_.append((stage, micro_batch))
        if micro_batch < micro_batches:
            actions.append(Action(op, stage, micro_batch))
    return tuple(actions)
