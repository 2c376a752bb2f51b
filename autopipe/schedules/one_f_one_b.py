"""1F1B: after a short warm-up, every rank alternates one forward and one backward."""

from autopipe.schedules.action import Action, Op, Schedule


def one_f_one_b(stages: int, micro_batches: int, *, depth: int = 0) -> Schedule:
    """Return the 1F1B schedule of ``stages`` ranks with one stage each.

    Rank r warms up with min(m, p-1-r + depth) forwards and then holds at most one more in flight: the same
    idle time as GPipe, but memory that does not grow with m. Each extra ``depth`` costs one more in-flight
    micro-batch per rank and lets messages travel while ranks compute. With p = 4, m = 8 and a backward as
    long as a forward::

        rank 0 | F0 F1 F2 F3          B0 F4 B1 F5 B2 F6 B3 F7 B4    B5    B6    B7
        rank 1 |    F0 F1 F2       B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5    B6    B7
        rank 2 |       F0 F1    B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6    B7
        rank 3 |          F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7

    References
    ----------
    Narayanan et al., "PipeDream", SOSP 2019, section 3.2; "PipeDream-Flush" in Narayanan et al.,
    "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, arXiv 2006.09503.
    """
    actions = tuple(_rank(stage, stages, micro_batches, depth) for stage in range(stages))
    return Schedule(name="1f1b", micro_batches=micro_batches, stage_ranks=tuple(range(stages)), actions=actions)


def _rank(stage: int, stages: int, micro_batches: int, depth: int) -> tuple[Action, ...]:
    extra = depth if stage < stages - 1 else 0
    warm_up = min(micro_batches, stages - 1 - stage + extra)
    # Warm-up
    actions = [Action(Op.FORWARD, stage, i) for i in range(warm_up)]
    # Steady state
    for i in range(micro_batches - warm_up):
        actions.append(Action(Op.FORWARD, stage, warm_up + i))
        actions.append(Action(Op.BACKWARD, stage, i))
    # Cool-down
    actions += [Action(Op.BACKWARD, stage, i) for i in range(micro_batches - warm_up, micro_batches)]
    return tuple(actions)
