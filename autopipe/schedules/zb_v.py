"""ZB-V: two stages a rank in the shape of a V, no idle time but the fill and the drain, in the memory of 1F1B."""

from autopipe.schedules.action import Action, Op, Schedule
from autopipe.schedules.fitted import StageTimes, fitted
from autopipe.schedules.pattern import follow


def zb_v(ranks: int, micro_batches: int) -> Schedule:
    """Return ZB-V: rank r holds stage r on the way out and stage 2p-1-r on the way back.

    Each rank holds at most 2p of its half-sized stages' micro-batches, as much as 1F1B's first rank. With equal
    F, I and W and m >= 2p-1 a rank computes 6m actions and idles for p-1. In the steady state every message has
    at least the time of one action before it is needed, so that link latency costs about 3p hops a step, not
    one for each micro-batch. With fewer than 2p-1 micro-batches there is no steady state, and the schedule is what
    the list scheduler makes of equal times, which defers weight gradients to where it idles.

    With p = 4, m = 8 and F, I and W equally long::

        rank 0 | F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F7.0 I7.0 W7.0 F7.1 I7.1 W7.1 F7.2 I7.2 W7.2 F7.3 I7.3 W7.3 F0.7 I0.0 W0.0 F7.4 I7.4 W7.4 I0.1 W0.1 F7.5 I7.5 W7.5 I0.2 W0.2 F7.6 I7.6 W7.6 I0.3 W0.3 F7.7 I7.7 W7.7 I0.4 W0.4 I0.5 W0.5 I0.6 W0.6 I0.7 W0.7
        rank 1 |      F1.0 F1.1 F1.2 F1.3 F1.4 F6.0 F1.5 F6.1 I6.0 W6.0 F6.2 I6.1 W6.1 F6.3 I6.2 W6.2 F1.6 I1.0 W1.0 F6.4 I6.3 W6.3 F1.7 I1.1 W1.1 F6.5 I6.4 W6.4 I1.2 W1.2 F6.6 I6.5 W6.5 I1.3 W1.3 F6.7 I6.6 W6.6 I1.4 I6.7 I1.5 W1.4 I1.6 W6.7 I1.7 W1.5 W1.6 W1.7
        rank 2 |           F2.0 F2.1 F2.2 F5.0 F2.3 F5.1 F2.4 F5.2 I5.0 W5.0 F5.3 I5.1 W5.1 F2.5 I2.0 W2.0 F5.4 I5.2 W5.2 F2.6 I2.1 W2.1 F5.5 I5.3 W5.3 F2.7 I2.2 W2.2 F5.6 I5.4 W5.4 I2.3 W2.3 F5.7 I5.5 W5.5 I2.4 I5.6 I2.5 I5.7 I2.6 W2.4 I2.7 W5.6 W2.5 W5.7 W2.6 W2.7
        rank 3 |                F3.0 F4.0 F3.1 F4.1 F3.2 F4.2 F3.3 F4.3 I4.0 W4.0 F3.4 I3.0 W3.0 F4.4 I4.1 W4.1 F3.5 I3.1 W3.1 F4.5 I4.2 W4.2 F3.6 I3.2 W3.2 F4.6 I4.3 W4.3 F3.7 I3.3 W3.3 F4.7 I4.4 W4.4 I3.4 I4.5 I3.5 I4.6 I3.6 I4.7 I3.7 W3.4 W4.5 W3.5 W4.6 W3.6 W4.7 W3.7

    References
    ----------
    Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, arXiv 2405.15362, section 4.
    """  # noqa: E501
    placement = (*range(ranks), *reversed(range(ranks)))
    if micro_batches < 2 * ranks - 1:
        times = [StageTimes(forward=1, input_grad=1, weight_grad=1)] * len(placement)
        return fitted(placement, micro_batches, times, limits=[2 * ranks] * ranks, reserve=False, name="zb-v")
    actions = tuple(_rank(rank, ranks, micro_batches) for rank in range(ranks))
    return Schedule(name="zb-v", micro_batches=micro_batches, stage_ranks=placement, actions=actions)


def _rank(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    out, back = rank, 2 * ranks - 1 - rank
    to_turn = ranks - rank
    forward_out, forward_back = (Op.FORWARD, out), (Op.FORWARD, back)
    input_out, input_back = (Op.INPUT_GRAD, out), (Op.INPUT_GRAD, back)
    weight = (Op.WEIGHT_GRAD, out)
    rounds = micro_batches - (2 * ranks - 1 - rank)
    pattern = [
        # Warm-up
        *[forward_out] * (2 * to_turn - 1),
        *[forward_back, forward_out] * rank,
        *[forward_back, input_back, weight] * to_turn,
        # Steady state
        *[forward_out, input_out, weight, forward_back, input_back, weight] * rounds,
        # Cool-down
        *[input_out, weight, forward_back, input_back, weight] * (to_turn - 1),
        *[input_out, input_back] * rank,
        *[input_out, weight] * to_turn,
        *[weight] * (2 * rank),
    ]
    return follow(pattern, micro_batches)
