"""Looped BFS: every rank runs all micro-batches on one virtual stage before it turns to the next."""

from autopipe.schedules.action import Action, Op, Schedule


def bfs(ranks: int, micro_batches: int, *, virtual: int) -> Schedule:
    """Return looped breadth-first: stage s is on rank s mod p, and each rank holds ``virtual`` stages.

    As GPipe it holds all micro-batches in flight, on every virtual stage; as interleaved 1F1B it divides the
    idle time by v. Each parameter is used in one run of forwards and one of backwards, which suits sharded
    parameters and early gradient reduction.

    With p = 4, m = 8, v = 2 and a backward as long as a forward::

        rank 0 | F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F0.7 F4.0 F4.1 F4.2 F4.3 F4.4 F4.5 F4.6 F4.7                               B4.0 B4.1 B4.2 B4.3 B4.4 B4.5 B4.6 B4.7 B0.0 B0.1 B0.2 B0.3 B0.4 B0.5 B0.6 B0.7
        rank 1 |      F1.0 F1.1 F1.2 F1.3 F1.4 F1.5 F1.6 F1.7 F5.0 F5.1 F5.2 F5.3 F5.4 F5.5 F5.6 F5.7                     B5.0 B5.1 B5.2 B5.3 B5.4 B5.5 B5.6 B5.7 B1.0 B1.1 B1.2 B1.3 B1.4 B1.5 B1.6 B1.7
        rank 2 |           F2.0 F2.1 F2.2 F2.3 F2.4 F2.5 F2.6 F2.7 F6.0 F6.1 F6.2 F6.3 F6.4 F6.5 F6.6 F6.7           B6.0 B6.1 B6.2 B6.3 B6.4 B6.5 B6.6 B6.7 B2.0 B2.1 B2.2 B2.3 B2.4 B2.5 B2.6 B2.7
        rank 3 |                F3.0 F3.1 F3.2 F3.3 F3.4 F3.5 F3.6 F3.7 F7.0 F7.1 F7.2 F7.3 F7.4 F7.5 F7.6 F7.7 B7.0 B7.1 B7.2 B7.3 B7.4 B7.5 B7.6 B7.7 B3.0 B3.1 B3.2 B3.3 B3.4 B3.5 B3.6 B3.7

    References
    ----------
    Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, arXiv 2211.05953, section 4.
    """  # noqa: E501
    actions = []
    for rank in range(ranks):
        stages = [turn * ranks + rank for turn in range(virtual)]
        forwards = [Action(Op.FORWARD, stage, i) for stage in stages for i in range(micro_batches)]
        backwards = [Action(Op.BACKWARD, stage, i) for stage in reversed(stages) for i in range(micro_batches)]
        actions.append((*forwards, *backwards))
    stage_ranks = tuple(stage % ranks for stage in range(ranks * virtual))
    return Schedule(name="bfs", micro_batches=micro_batches, stage_ranks=stage_ranks, actions=tuple(actions))
