"""The dynamic programme against every split."""

from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.planner.bounds import cheapest, frontier, reduce
from autopipe.planner.problem import objective_ns, pace_ns
from tests.planner.instances import every_split, least_objective, problem_of, problems
from tests.profiles import chain_profile


def total_ns(problem, bounds):
    spans = zip(range(problem.stages), bounds, bounds[1:], strict=False)
    return sum(int(problem.compute_ns[s][i, j] + problem.hop_ns[s][i, j]) for s, i, j in spans)


def test_the_best_split_of_unequal_layers():
    known = frontier(problem_of(chain_profile([10, 10, 10, 30]), stages=2, micro_batches=8))
    assert known is not None
    assert (known.best.bounds, known.best.pace_ns) == ((0, 3, 4), 90)


@settings(deadline=None)
@given(problem=problems(), limit=st.none() | st.integers(0, 400))
def test_the_cheapest_split_within_a_pace(problem, limit):
    within = [b for b in every_split(problem) if limit is None or pace_ns(problem, b) <= limit]
    found = cheapest(problem, pace_limit_ns=limit)
    if not within:
        assert found is None
        return
    assert found is not None
    assert found.bounds in within
    assert found.total_ns == total_ns(problem, found.bounds) == min(total_ns(problem, b) for b in within)


@settings(deadline=None, max_examples=200)
@given(problem=problems(plain=True))
def test_the_dynamic_programme_is_exact_without_optimizer_and_tied_parameters(problem):
    known = frontier(problem)
    least = least_objective(problem)
    if least is None:
        assert known is None
        return
    assert known is not None
    assert objective_ns(problem, known.best.bounds) == least
    assert (problem.micro_batches - 1) * known.best.pace_ns + known.best.total_ns == least
    assert known.fastest.pace_ns == min(pace_ns(problem, bounds) for bounds in every_split(problem))


@settings(deadline=None)
@given(problem=problems())
def test_it_is_a_bound_with_them(problem):
    known, least = frontier(problem), least_objective(problem)
    if known is not None and least is not None:
        assert (problem.micro_batches - 1) * known.best.pace_ns + known.best.total_ns <= least


@settings(deadline=None)
@given(problem=problems(), slack=st.integers(0, 300))
def test_no_split_within_the_incumbent_is_lost_by_the_reduction(problem, slack):
    known = frontier(problem)
    if known is None:
        return
    incumbent = objective_ns(problem, known.best.bounds) + slack
    kept = set(reduce(known, incumbent).arcs)
    for bounds in every_split(problem):
        if objective_ns(problem, bounds) <= incumbent:
            assert all((s, bounds[s], bounds[s + 1]) in kept for s in range(problem.stages))
