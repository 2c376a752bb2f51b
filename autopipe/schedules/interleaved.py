"""Interleaved 1F1B: every rank holds v virtual stages and runs them in turn, which divides the idle time by v."""

from autopipe.schedules.action import Action, Op, Schedule


def interleaved(ranks: int, micro_batches: int, *, virtual: int) -> Schedule:
    """Return interleaved 1F1B: stage s is on rank s mod p, and each rank holds ``virtual`` stages.

    Micro-batches go through in rounds of p: a rank runs a round on its first virtual stage, then on its
    next, backwards in reverse. Rank r warms up with 2(p-1-r) + (v-1)p forwards and then alternates, so it
    holds at most min(mv, 2(p-1-r) + (v-1)p + 1) stage-micro-batches; bubble ratio (p-1)/(vm+p-1) for equal
    virtual stages if p divides m. For any other m the schedule is that of the next multiple of p with the
    actions of the micro-batches that do not exist left out, which keeps it in order and free of deadlock.

    With p = 4, m = 8, v = 2 and a backward as long as a forward::

        rank 0 | F0.0 F0.1 F0.2 F0.3 F4.0 F4.1 F4.2 F4.3 F0.4 F0.5 F0.6 B4.0 F0.7 B4.1           F4.4 B4.2 F4.5 B4.3 F4.6 B0.0 F4.7 B0.1 B0.2 B0.3      B4.4      B4.5      B4.6      B4.7 B0.4 B0.5 B0.6 B0.7
        rank 1 |      F1.0 F1.1 F1.2 F1.3 F5.0 F5.1 F5.2 F5.3 F1.4 B5.0 F1.5 B5.1 F1.6 B5.2 F1.7 B5.3 F5.4 B1.0 F5.5 B1.1 F5.6 B1.2 F5.7 B1.3      B5.4      B5.5      B5.6      B5.7 B1.4 B1.5 B1.6 B1.7
        rank 2 |           F2.0 F2.1 F2.2 F2.3 F6.0 F6.1 F6.2 B6.0 F6.3 B6.1 F2.4 B6.2 F2.5 B6.3 F2.6 B2.0 F2.7 B2.1 F6.4 B2.2 F6.5 B2.3 F6.6 B6.4 F6.7 B6.5      B6.6      B6.7 B2.4 B2.5 B2.6 B2.7
        rank 3 |                F3.0 F3.1 F3.2 F3.3 F7.0 B7.0 F7.1 B7.1 F7.2 B7.2 F7.3 B7.3 F3.4 B3.0 F3.5 B3.1 F3.6 B3.2 F3.7 B3.3 F7.4 B7.4 F7.5 B7.5 F7.6 B7.6 F7.7 B7.7 B3.4 B3.5 B3.6 B3.7

    References
    ----------
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    SC 2021, arXiv 2104.04473, section 2.2.
    """  # noqa: E501
    rounds = -(-micro_batches // ranks)
    actions = tuple(
        tuple(action for action in _rank(rank, ranks, rounds, virtual) if action.micro_batch < micro_batches)
        for rank in range(ranks)
    )
    stage_ranks = tuple(stage % ranks for stage in range(ranks * virtual))
    return Schedule(name="interleaved", micro_batches=micro_batches, stage_ranks=stage_ranks, actions=actions)


def _rank(rank: int, ranks: int, rounds: int, virtual: int) -> list[Action]:
    order = [(turn, round_ * ranks + i) for round_ in range(rounds) for turn in range(virtual) for i in range(ranks)]
    forwards = [Action(Op.FORWARD, turn * ranks + rank, i) for turn, i in order]
    backwards = [Action(Op.BACKWARD, (virtual - 1 - turn) * ranks + rank, i) for turn, i in order]
    warm_up = min(len(order), 2 * (ranks - 1 - rank) + (virtual - 1) * ranks)
    # Warm-up
    actions = forwards[:warm_up]
    # Steady state
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        actions += (forward, backward)
    # Cool-down
    return actions + backwards[len(order) - warm_up :]
