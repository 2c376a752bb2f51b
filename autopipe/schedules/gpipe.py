"""GPipe: all forwards, then all backwards."""

from autopipe.schedules.action import Action, Op, Schedule


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Return the GPipe schedule of ``stages`` ranks with one stage each.

    Every rank holds all ``micro_batches`` in flight; bubble ratio (p-1)/(m+p-1) for equal stages. With
    p = 4, m = 8 and a backward as long as a forward::

        rank 0 | F0 F1 F2 F3 F4 F5 F6 F7                   B0 B1 B2 B3 B4 B5 B6 B7
        rank 1 |    F0 F1 F2 F3 F4 F5 F6 F7             B0 B1 B2 B3 B4 B5 B6 B7
        rank 2 |       F0 F1 F2 F3 F4 F5 F6 F7       B0 B1 B2 B3 B4 B5 B6 B7
        rank 3 |          F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7

    References
    ----------
    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    NeurIPS 2019, arXiv 1811.06965. There backwards run in reverse order; here in the order of the
    micro-batches, so that gradients are summed in the order of a plain training loop.
    """
    actions = tuple(
        tuple(Action(op, stage, i) for op in (Op.FORWARD, Op.BACKWARD) for i in range(micro_batches))
        for stage in range(stages)
    )
    return Schedule(name="gpipe", micro_batches=micro_batches, stage_ranks=tuple(range(stages)), actions=actions)
