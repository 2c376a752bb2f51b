"""Bounds by prices and by counting are under every step that fits, whoever recomputes."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.hardware.cluster import Cluster
from autopipe.planner.counted import counted_bound_ns
from autopipe.planner.kind import Kind
from autopipe.planner.prices import Prices, best_prices, demand, even_prices, priced_bound_ns
from autopipe.planner.score import recosted, simulated
from tests.planner.instances import every_split, problem_of
from tests.planner.test_joint import recomputing
from tests.profiles import chain_profile, cost, layer, profile

KINDS = [
    Kind(schedule="1f1b"),
    Kind(schedule="gpipe"),
    Kind(schedule="interleaved", virtual=2),
    Kind(schedule="bfs", virtual=2),
]


def asked_of(problem):
    return demand(problem.intervals, problem.grid, kind=problem.kind, micro_batches=problem.micro_batches)


def steps_that_fit(problem, splits):
    """The simulated steps of splits and all choices of recompute that keep to the limits."""
    able = [at for at, own in enumerate(problem.intervals.sized.costs) if own.recompute_ns is not None]
    for bounds in splits:
        for count in range(len(able) + 1):
            for chosen in combinations(able, count):
                candidate = simulated(recosted(problem, bounds, frozenset(chosen), problem.kind))
                if candidate.fits:
                    yield candidate.step_ns


@settings(deadline=None, max_examples=40)
@given(
    found=recomputing(5),
    limit=st.integers(60, 500),
    count=st.integers(1, 6),
    kind=st.sampled_from(KINDS),
    ranks=st.integers(2, 3),
    worth=st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 3)), min_size=3, max_size=3),
)
def test_no_step_that_fits_is_under_them(found, limit, count, kind, ranks, worth):
    if ranks * kind.virtual > len(found.layers):
        return
    free = problem_of(found, cluster=Cluster.uniform(ranks), stages=ranks, micro_batches=count, kind=kind)
    problem = problem_of(
        found, cluster=Cluster.uniform(ranks, memory_bytes=limit), stages=ranks, micro_batches=count, kind=kind
    )
    asked = asked_of(problem)
    time, memory = np.array(worth[:ranks]).T
    prices = [even_prices(ranks), best_prices(asked), Prices(time=time / time.sum(), memory=memory)]
    bounds = [counted_bound_ns(asked), *(priced_bound_ns(asked, one) for one in prices if one is not None)]
    for step in steps_that_fit(problem, every_split(free)):
        assert max(bounds) <= step


def test_without_limits_equal_layers_give_each_rank_its_share():
    problem = problem_of(chain_profile([3] * 8), stages=4, micro_batches=10, kind=Kind(schedule="1f1b"))
    least = sum(own.forward_ns + own.backward_ns for own in problem.intervals.sized.costs) * 10 / 4
    assert priced_bound_ns(asked_of(problem), even_prices(4)) >= int(least)


@pytest.mark.parametrize(("layers", "whole"), [(4, 2), (5, 3), (6, 3)])
def test_a_rank_takes_whole_layers(layers, whole):
    problem = problem_of(chain_profile([7] * layers), stages=2, micro_batches=5, kind=Kind(schedule="1f1b"))
    own = problem.intervals.sized.costs[0]
    assert counted_bound_ns(asked_of(problem)) >= 5 * whole * (own.forward_ns + own.backward_ns)


def test_memory_for_one_layer_as_it_is_makes_the_others_recompute():
    figures = {"saved_bytes": 100, "recompute_ns": 10, "saved_recompute_bytes": 0}
    found = profile([layer(f"l{at}", [cost(10, **figures)], 10) for at in range(4)])
    tight, roomy = (
        problem_of(found, cluster=Cluster.uniform(2, memory_bytes=limit), stages=2, micro_batches=8)
        for limit in (150, 1000)
    )
    assert counted_bound_ns(asked_of(tight)) > counted_bound_ns(asked_of(roomy))
