"""The bound under every step, against the simulator."""

from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.planner.score import score
from autopipe.planner.step_bound import Bound, split_bound_ns, tightest
from tests.planner.instances import ONE_STAGE, every_split, problem_of, problems
from tests.profiles import chain_profile


@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 12), kind=st.sampled_from(ONE_STAGE))
def test_it_is_the_step_for_equal_stages_and_free_links(stages, micro_batches, kind):
    problem = problem_of(
        chain_profile([10] * stages, optimizer_ns=3), stages=stages, micro_batches=micro_batches, kind=kind
    )
    bounds = tuple(range(stages + 1))
    assert tightest(problem) == Bound(step_ns=score(problem, bounds).step_ns, split=bounds)


@settings(deadline=None, max_examples=300)
@given(problems())
def test_no_step_is_ever_under_it(problem):
    found = tightest(problem)
    bounds_of = list(every_split(problem))
    if found is None:
        assert not bounds_of
        return
    least, split = found.step_ns, found.split
    assert split in bounds_of
    assert least == min(split_bound_ns(problem, bounds) for bounds in bounds_of) == split_bound_ns(problem, split)
    for bounds in bounds_of:
        assert split_bound_ns(problem, bounds) <= score(problem, bounds).step_ns


@settings(deadline=None, max_examples=100)
@given(problems(chain=True, max_layers=6))
def test_no_step_of_a_row_of_layers_is_ever_under_it(problem):
    for bounds in every_split(problem):
        assert split_bound_ns(problem, bounds) <= score(problem, bounds).step_ns
