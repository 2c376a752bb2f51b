"""A schedule is proved complete, in order and free of deadlock before any process starts."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from autopipe.errors import ScheduleError
from autopipe.schedules.action import Action, Op, Schedule
from autopipe.schedules.collector import collector_paused
from autopipe.schedules.comms import LOOKAHEAD, Edge, Kind, Message, Step, lower, reads, writes
from autopipe.schedules.grid import mark

_REMEDY = "Reorder the actions, or take a schedule by name: autopipe schedule 1f1b --stages 4 --micro-batches 8."


@collector_paused()
def check(schedule: Schedule, edges: Iterable[Edge]) -> None:
    """Return if ``schedule`` can run over ``edges``.

    It then computes every micro-batch of every stage once forward and once backward (B, or I and later W),
    each after what it needs; a schedule without any backward is taken as forward-only. No rank waits for
    ever although no message is buffered, neither with receives posted ahead as `comms.lower` does by
    default nor with each posted right before its action (as in the executor's first step, when shapes are
    not known yet). Messages between two ranks are posted in the order of their sends, so this holds for
    channels without tags (NCCL) too.

    Raises
    ------
    ScheduleError
        With the actions around the fault, the faulty one between ``>`` and ``<``.

    Notes
    -----
    A send never blocks and a receive ends only when both sides have come to the message, so a rank's
    progress never takes another's away: running the ranks in any order finds a deadlock if there is one.
    Time is linear in the number of steps.
    """
    edges = tuple(edges)
    _check_places(schedule, edges)
    _check_actions(schedule, edges)
    for lookahead in (LOOKAHEAD, 0):
        steps = lower(schedule, edges, lookahead=lookahead)
        _check_progress(schedule, steps)


def _check_places(schedule: Schedule, edges: tuple[Edge, ...]) -> None:
    """Every stage is on an existing rank, every action on its stage's rank, every edge goes forward."""
    if schedule.micro_batches < 1 or not schedule.stages:
        raise ScheduleError(
            f"a schedule of {schedule.stages} stages and {schedule.micro_batches} micro-batches computes nothing: "
            "both must be at least 1."
        )
    for stage, rank in enumerate(schedule.stage_ranks):
        if not 0 <= rank < schedule.ranks:
            raise ScheduleError(
                f"stage {stage} is on rank {rank}, but there are {schedule.ranks} ranks: use 0 to {schedule.ranks - 1}."
            )
    for edge in edges:
        if not 0 <= edge.source < edge.target < schedule.stages:
            raise ScheduleError(
                f"the edge from stage {edge.source} to {edge.target} does not lead to a later one of the "
                f"{schedule.stages} stages: values can only travel forward."
            )
    for rank, position, action in _positions(schedule):
        if not (0 <= action.stage < schedule.stages and 0 <= action.micro_batch < schedule.micro_batches):
            raise _fault(
                schedule,
                {rank: position},
                f"{action} is outside the {schedule.stages} stages and {schedule.micro_batches} micro-batches",
            )
        if schedule.stage_ranks[action.stage] != rank:
            raise _fault(
                schedule,
                {rank: position},
                f"{action} stands on rank {rank}, but stage {action.stage} is on rank "
                f"{schedule.stage_ranks[action.stage]}",
            )


def _check_actions(schedule: Schedule, edges: tuple[Edge, ...]) -> None:
    """Every F, and B or I then W, comes exactly once, after its own F and after what its rank must make for it."""
    trains = any(action.op is not Op.FORWARD for _, _, action in _positions(schedule))
    done: set[Action] = set()
    local = tuple(e for e in edges if schedule.stage_ranks[e.source] == schedule.stage_ranks[e.target])
    made: set[Message] = set()
    for rank, position, action in _positions(schedule):
        reason = _out_of_order(action, done)
        missing = next((message for message in reads(action, local) if message not in made), None)
        if reason is None and missing is not None:
            reason = f"{action} reads {missing}, which its rank makes only later or never"
        if reason is not None:
            raise _fault(schedule, {rank: position}, reason)
        done.add(action)
        made.update(writes(action, local))
    for stage, rank in enumerate(schedule.stage_ranks):
        for i in range(schedule.micro_batches):
            missing_action = _missing(stage, i, done, trains)
            if missing_action is not None:
                end = len(schedule.actions[rank])
                raise _fault(schedule, {rank: end}, f"rank {rank} ends without {missing_action}")


def _out_of_order(action: Action, done: set[Action]) -> str | None:
    """Return why ``action`` may not come after the actions ``done``."""
    if action in done:
        return f"{action} comes twice"

    def has(op: Op) -> bool:
        return Action(op, action.stage, action.micro_batch) in done

    if action.op is not Op.FORWARD and not has(Op.FORWARD):
        return f"{action} comes before its forward"
    if action.op is Op.WEIGHT_GRAD and not has(Op.INPUT_GRAD):
        return f"{action} comes before its input gradient"
    if (action.op is Op.BACKWARD and has(Op.INPUT_GRAD)) or (action.op is Op.INPUT_GRAD and has(Op.BACKWARD)):
        return f"{action} would be a second backward of that micro-batch"
    return None


def _missing(stage: int, micro_batch: int, done: set[Action], trains: bool) -> Action | None:
    forward, backward, first, second = (
        Action(op, stage, micro_batch) for op in (Op.FORWARD, Op.BACKWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD)
    )
    if forward not in done:
        return forward
    if not trains or backward in done:
        return None
    if first not in done:
        return backward
    return None if second in done else second


def _check_progress(schedule: Schedule, steps: tuple[tuple[Step, ...], ...]) -> None:
    """All ranks reach their end when a wait ends only once the other side has posted or sent."""
    reached: set[tuple[Kind, Message]] = set()
    position = [0] * schedule.ranks
    computed = [0] * schedule.ranks
    waiting: dict[tuple[Kind, Message], int] = {}
    ready = deque(range(schedule.ranks))
    opposite = {Kind.WAIT_RECEIVE: Kind.SEND, Kind.WAIT_SEND: Kind.POST}
    while ready:
        rank = ready.popleft()
        row = steps[rank]
        while position[rank] < len(row):
            step = row[position[rank]]
            message = step.message
            if message is None:
                computed[rank] += 1
            elif step.kind in opposite:
                event = opposite[step.kind], message
                if event not in reached:
                    waiting[event] = rank
                    break
            else:
                event = step.kind, message
                reached.add(event)
                if event in waiting:
                    ready.append(waiting.pop(event))
            position[rank] += 1
    if waiting:
        stuck = {rank: computed[rank] for rank in waiting.values()}
        circle = "; ".join(
            f"rank {rank} waits at '{steps[rank][position[rank]]}'" for rank in sorted(waiting.values())[:8]
        )
        raise _fault(schedule, stuck, f"these ranks wait for each other and nobody can go on: {circle}")


def _positions(schedule: Schedule) -> Iterator[tuple[int, int, Action]]:
    for rank, row in enumerate(schedule.actions):
        for position, action in enumerate(row):
            yield rank, position, action


def _fault(schedule: Schedule, faults: Mapping[int, int], reason: str) -> ScheduleError:
    return ScheduleError(f"schedule {schedule.name!r} cannot run: {reason}.\n{mark(schedule, faults)}{_REMEDY}")
