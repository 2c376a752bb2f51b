"""Forward-only: every rank runs the micro-batches in order, for evaluation."""

from collections.abc import Sequence

from autopipe.schedules.action import Action, Op, Schedule


def forward_only(stage_ranks: Sequence[int], micro_batches: int) -> Schedule:
    """Return the schedule that computes the forwards of all micro-batches and nothing else.

    A rank with several stages takes the micro-batches in rounds of p, one stage after the other. With p = 4,
    m = 8::

        rank 0 | F0 F1 F2 F3 F4 F5 F6 F7
        rank 1 |    F0 F1 F2 F3 F4 F5 F6 F7
        rank 2 |       F0 F1 F2 F3 F4 F5 F6 F7
        rank 3 |          F0 F1 F2 F3 F4 F5 F6 F7

    Parameters
    ----------
    stage_ranks : sequence of int
        The rank of each stage, by stage index.
    """
    ranks = max(stage_ranks) + 1
    rounds = [range(first, min(first + ranks, micro_batches)) for first in range(0, micro_batches, ranks)]
    actions = []
    for rank in range(ranks):
        stages = [stage for stage, owner in enumerate(stage_ranks) if owner == rank]
        actions.append(tuple(Action(Op.FORWARD, stage, i) for round_ in rounds for stage in stages for i in round_))
    return Schedule(name="forward", micro_batches=micro_batches, stage_ranks=tuple(stage_ranks), actions=tuple(actions))
