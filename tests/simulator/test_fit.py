"""The search for a schedule: never worse than a template, within its limits, the same every time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.errors import InfeasibleError
from autopipe.hardware.cluster import Link
from autopipe.schedules.action import Op, peak_in_flight
from autopipe.schedules.check import check
from autopipe.schedules.comms import chain
from autopipe.schedules.named import make
from autopipe.simulator.events import run
from autopipe.simulator.fit import fit

ALIKE = StageCost(forward_ns=100, backward_ns=200, input_grad_ns=100, weight_grad_ns=100, saved_bytes=10)


def costs(seed: int, stages: int, *, split: bool = True) -> list[StageCost]:
    chance = random.Random(seed)
    rows = []
    for _ in range(stages):
        forward, input_grad, weight_grad = (chance.randint(50, 200) for _ in range(3))
        parts = {"input_grad_ns": input_grad, "weight_grad_ns": weight_grad} if split else {}
        rows.append(StageCost(forward_ns=forward, backward_ns=input_grad + weight_grad, **parts))
    return rows


def links(stages: int, hop: int = 3) -> list[EdgeCost]:
    return [EdgeCost(edge=edge, link=Link(latency_ns=hop)) for edge in chain(stages)]


def step(schedule, stages, edges) -> int:
    return run(schedule, stages, edges, with_spans=False).makespan_ns


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), p=st.integers(1, 5), m=st.integers(1, 10), split=st.booleans())
def test_it_is_never_slower_than_a_template_within_the_limits(seed, p, m, split):
    stages, edges, limits = costs(seed, p, split=split), links(p), [p] * p
    best = fit(stages, edges, range(p), m, limits=limits)
    check(best, chain(p))
    assert all(peak_in_flight(row) <= p for row in best.actions)
    assert split or all(action.op in (Op.FORWARD, Op.BACKWARD) for row in best.actions for action in row)
    for name in ("1f1b", "zb-h1") if split else ("1f1b",):
        assert step(best, stages, edges) <= step(make(name, stages=p, micro_batches=m), stages, edges)


def test_unequal_stages_gain_from_a_schedule_of_their_own():
    stages = [
        StageCost(forward_ns=f, backward_ns=i + w, input_grad_ns=i, weight_grad_ns=w)
        for f, i, w in ((100, 90, 30), (60, 100, 80), (120, 60, 60), (80, 120, 40))
    ]
    edges = links(4, hop=2)
    best = fit(stages, edges, range(4), 12, limits=[5] * 4)
    templates = [make(name, stages=4, micro_batches=12) for name in ("1f1b", "zb-h1")]
    assert step(best, stages, edges) < 0.99 * min(step(template, stages, edges) for template in templates)


def test_a_v_of_stages_gets_a_schedule_too():
    placement = (0, 1, 2, 2, 1, 0)
    stages, edges = costs(3, 6), links(6)
    best = fit(stages, edges, placement, 6, limits=[6] * 3)
    assert best.stage_ranks == placement
    assert step(best, stages, edges) <= step(make("zb-v", stages=3, micro_batches=6), stages, edges)


def test_the_same_question_has_the_same_answer():
    stages, edges = costs(1, 4), links(4)
    assert fit(stages, edges, range(4), 8, limits=[6] * 4) == fit(stages, edges, range(4), 8, limits=[6] * 4)


def test_limits_below_one_a_stage_are_refused():
    with pytest.raises(InfeasibleError, match="one for each of a rank's stages"):
        fit(costs(0, 2), links(2), range(2), 4, limits=[0, 0])


def test_it_keeps_within_the_memory_of_the_ranks_that_have_a_limit():
    stages, edges = [ALIKE] * 4, [EdgeCost(edge=edge) for edge in chain(4)]
    free = run(fit(stages, edges, range(4), 12), stages, edges, with_spans=False)
    limited = fit(stages, edges, range(4), 12, memory_bytes=[30, 30, None, 30])
    tight = run(limited, stages, edges, with_spans=False)
    template = run(make("zb-h1", stages=4, micro_batches=12), stages, edges, with_spans=False)
    assert free.step_ns <= template.step_ns < tight.step_ns
    assert all(tight.peak_bytes[rank] <= 30 for rank in (0, 1, 3))


def test_memory_for_no_schedule_is_told():
    with pytest.raises(InfeasibleError, match="Allow more memory"):
        fit([ALIKE] * 2, [EdgeCost(edge=edge) for edge in chain(2)], range(2), 4, memory_bytes=[5, 5])
