"""The integer programme against every split."""

import pytest
from hypothesis import given, settings

from autopipe.documents.profile import SharedParameter
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner.bounds import everything, frontier, reduce
from autopipe.planner.ilp import build, solve
from autopipe.planner.kind import Kind
from autopipe.planner.problem import objective_ns
from autopipe.planner.wishes import Wishes
from tests.planner.instances import least_objective, problem_of, problems
from tests.profiles import chain_profile, cost, layer, profile


@settings(deadline=None, max_examples=150)
@given(problem=problems())
def test_it_finds_the_least_objective_of_all_splits(problem):
    known, least = frontier(problem), least_objective(problem)
    if known is None:
        assert least is None
        return
    found = solve(problem, reduce(known, objective_ns(problem, known.best.bounds)))
    assert found is not None
    assert found.objective_ns == objective_ns(problem, found.bounds) == least
    assert found.status == "optimal"
    assert found.gap <= 1e-9
    assert abs(found.bound_ns - least) <= 1


@settings(deadline=None, max_examples=60)
@given(problem=problems(max_layers=5))
def test_the_reduction_changes_nothing(problem):
    found = solve(problem, everything(problem))
    assert (None if found is None else found.objective_ns) == least_objective(problem)


def test_tied_layers_share_a_stage_where_apart_costs_more():
    layers = [layer(name, [cost(time)], parameter_bytes=100) for name, time in (("a", 10), ("b", 10), ("c", 10))]
    shared = (SharedParameter(name="tied", layers=(1, 2), bytes=100),)
    free, slow = Cluster.uniform(2), Cluster.uniform(2, intra_node=Link(latency_ns=30))
    for cluster, bounds in ((free, (0, 2, 3)), (slow, (0, 1, 3))):
        problem = problem_of(profile(layers, shared=shared), cluster=cluster, stages=2, micro_batches=1)
        found = solve(problem, everything(problem))
        assert found is not None
        assert found.objective_ns == least_objective(problem)
        if cluster is slow:
            assert found.bounds == bounds


def test_a_large_optimizer_is_spread_where_computation_leaves_the_choice():
    layers = [layer("a", [cost(10)], optimizer_ns=50), layer("b", [cost(0)], optimizer_ns=50), layer("c", [cost(10)])]
    problem = problem_of(profile(layers), stages=2, micro_batches=4)
    found = solve(problem, everything(problem))
    assert found is not None
    assert found.bounds == (0, 1, 3)


def test_its_constraints_bear_the_names_of_the_page():
    shared = (SharedParameter(name="tied", layers=(0, 3), bytes=0),)
    found = profile([layer(name, [cost()], parameter_bytes=1) for name in "abcdefg"], shared=shared)
    names = set()
    for kind, limit in ((Kind(schedule="1f1b"), 10**6), (Kind(schedule="interleaved", virtual=2), 12)):
        wishes = Wishes(together=((0, 4),)) if kind.virtual > 1 else None
        cluster = Cluster.uniform(3, memory_bytes=limit, intra_node=Link(latency_ns=1))
        problem = problem_of(found, cluster=cluster, stages=3, micro_batches=9, kind=kind, wishes=wishes)
        model = build(problem, everything(problem)).model
        names |= {constraint.name.partition("_")[0] for constraint in model.constraints()}
    assert names == {"C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8"}


def test_an_unknown_engine_is_refused():
    problem = problem_of(chain_profile([1]), stages=1, micro_batches=1)
    with pytest.raises(InputError, match="choose from highs"):
        solve(problem, everything(problem), engine="abacus")


def test_the_engine_prints_nothing(capfd):
    problem = problem_of(chain_profile([3, 1, 2]), stages=2, micro_batches=4)
    solve(problem, everything(problem))
    assert capfd.readouterr() == ("", "")
