"""ZB-H1 and ZB-H2: the backward is split, and weight gradients fill the time in which 1F1B idles."""

from autopipe.schedules.action import Action, Op, Schedule


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """Return ZB-H1: the memory of 1F1B's first rank on every rank, about a third of its idle time.

    Rank r forwards p-1-r micro-batches first, as 1F1B does, and lags r weight gradients behind its input
    gradients; so every rank holds at most p micro-batches, and the others get their gradients early. Idle
    time (p-1)(F + I - W) for equal stages.

    With p = 4, m = 8 and F, I and W equally long::

        rank 0 | F0 F1 F2 F3          I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
        rank 1 |    F0 F1 F2       I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
        rank 2 |       F0 F1    I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
        rank 3 |          F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7

    References
    ----------
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241, section 2.1.
    """
    actions = tuple(_rank(stage, micro_batches, warm_up=stages - 1 - stage, lag=stage) for stage in range(stages))
    return Schedule(name="zb-h1", micro_batches=micro_batches, stage_ranks=tuple(range(stages)), actions=actions)


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """Return ZB-H2: no idle time between first and last action where F = I = W, at twice the memory of ZB-H1.

    Rank r forwards 2(p-1-r) micro-batches first and lags 2r weight gradients behind; every rank holds at
    most 2p-1 micro-batches.

    With p = 4, m = 8 and F, I and W equally long::

        rank 0 | F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7
        rank 1 |    F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7
        rank 2 |       F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7
        rank 3 |          F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7

    References
    ----------
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241, section 2.2.
    """
    actions = tuple(
        _rank(stage, micro_batches, warm_up=2 * (stages - 1 - stage), lag=2 * stage) for stage in range(stages)
    )
    return Schedule(name="zb-h2", micro_batches=micro_batches, stage_ranks=tuple(range(stages)), actions=actions)


def _rank(stage: int, micro_batches: int, *, warm_up: int, lag: int) -> tuple[Action, ...]:
    warm_up, lag = min(micro_batches, warm_up), min(micro_batches, lag)
    # Warm-up
    actions = [Action(Op.FORWARD, stage, i) for i in range(warm_up)]
    # Steady state, then cool-down: weight gradients follow `lag` behind
    for i in range(micro_batches):
        if warm_up + i < micro_batches:
            actions.append(Action(Op.FORWARD, stage, warm_up + i))
        actions.append(Action(Op.INPUT_GRAD, stage, i))
        if i >= lag:
            actions.append(Action(Op.WEIGHT_GRAD, stage, i - lag))
    return (*actions, *(Action(Op.WEIGHT_GRAD, stage, i) for i in range(micro_batches - lag, micro_batches)))
