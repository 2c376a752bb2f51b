"""Forward-only: every rank runs the micro-batches in order, for evaluation."""

from autopipe.schedules.action import Action, Op, Schedule


def forward_only(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule that computes the forwards of all micro-batches and nothing else.

    With p = 4, m = 8::

        rank 0 | F0 F1 F2 F3 F4 F5 F6 F7
        rank 1 |    F0 F1 F2 F3 F4 F5 F6 F7
        rank 2 |       F0 F1 F2 F3 F4 F5 F6 F7
        rank 3 |          F0 F1 F2 F3 F4 F5 F6 F7
    """
    actions = tuple(tuple(Action(Op.FORWARD, stage, i) for i in range(micro_batches)) for stage in range(stages))
    return Schedule(name="forward", micro_batches=micro_batches, stage_ranks=tuple(range(stages)), actions=actions)
