"""DualPipeV: forwards and backwards of a V's two halves in pairs, with few weight gradients held back."""

from autopipe.schedules.action import Action, Op, Schedule
from autopipe.schedules.pattern import follow


def dualpipe_v(ranks: int, micro_batches: int) -> Schedule:
    """Return DualPipeV: placed as ZB-V, with whole backwards in the steady state.

    There a rank pairs a forward of one half with a backward of the other, one after the other here; where
    communication inside a stage (of experts, say) can hide behind the partner's computation, the pair is one
    kernel schedule. Only the fill and the drain split the backward. A rank holds at most 2p+1 stage-micro-batches.
    With fewer than 2p micro-batches the schedule is that of 2p, with the actions of the micro-batches that do
    not exist left out.

    With p = 4, m = 8 and F, B, I and W equally long::

        rank 0 | F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F7.0 I7.0 W7.0 F7.1 I7.1 W7.1 F7.2 I7.2 W7.2 F7.3 F0.7 B7.3 F7.4 B0.0 B7.4 F7.5 B0.1 B7.5 F7.6 B0.2 B7.6 F7.7 B0.3 B7.7 I0.4 W0.4 I0.5 W0.5 I0.6 W0.6 I0.7 W0.7
        rank 1 |      F1.0 F1.1 F1.2 F1.3 F1.4 F6.0 F1.5 F6.1 I6.0 W6.0 F6.2 I6.1 W6.1 F6.3 F1.6 B6.2 F6.4 B1.0 F1.7 B6.3 F6.5 B1.1 B6.4 F6.6 B1.2 B6.5 F6.7 B1.3 B6.6 B1.4 I6.7 I1.5 W6.7 I1.6 W1.5 I1.7 W1.6 W1.7
        rank 2 |           F2.0 F2.1 F2.2 F5.0 F2.3 F5.1 F2.4 F5.2 I5.0 W5.0 F5.3 F2.5 B5.1 F5.4 B2.0 F2.6 B5.2 F5.5 B2.1 F2.7 B5.3 F5.6 B2.2 B5.4 F5.7 B2.3 B5.5 B2.4 B5.6 I2.5 I5.7 I2.6 W2.5 I2.7 W5.7 W2.6 W2.7
        rank 3 |                F3.0 F4.0 F3.1 F4.1 F3.2 F4.2 F3.3 F4.3 F3.4 B4.0 F4.4 B3.0 F3.5 B4.1 F4.5 B3.1 F3.6 B4.2 F4.6 B3.2 F3.7 B4.3 F4.7 B3.3 B4.4 B3.4 B4.5 B3.5 I4.6 I3.6 I4.7 I3.7 W4.6 W3.6 W4.7 W3.7

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1, for DualPipe; Qi et al.,
    "DualPipe Could Be Better Without the Dual", 2025, for cutting it in half.
    """  # noqa: E501
    actions = tuple(_rank(rank, ranks, micro_batches) for rank in range(ranks))
    placement = (*range(ranks), *reversed(range(ranks)))
    return Schedule(name="dualpipe-v", micro_batches=micro_batches, stage_ranks=placement, actions=actions)


def _rank(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    out, back = rank, 2 * ranks - 1 - rank
    before_turn = ranks - 1 - rank
    forward_out, forward_back = (Op.FORWARD, out), (Op.FORWARD, back)
    backward_out, backward_back = (Op.BACKWARD, out), (Op.BACKWARD, back)
    input_out, input_back = (Op.INPUT_GRAD, out), (Op.INPUT_GRAD, back)
    weight = (Op.WEIGHT_GRAD, out)
    rounds = max(micro_batches, 2 * ranks) - 2 * ranks + rank + 1
    drain = [backward_back, backward_out] * (rank + 1)
    for late in range(rank + 1, len(drain)):
        drain[late] = input_back if drain[late] is backward_back else input_out
    pattern = [
        # Warm-up
        *[forward_out] * (2 * before_turn),
        *[forward_out, forward_back] * (rank + 1),
        *[input_back, weight, forward_back] * before_turn,
        # Steady state
        *[forward_out, backward_back, forward_back, backward_out] * rounds,
        # Cool-down
        *[backward_back, forward_back, backward_out] * before_turn,
        *drain,
        *[weight, input_out] * before_turn,
        *[weight] * (rank + 1),
    ]
    return follow(pattern, micro_batches)
