"""The bound under every step, against the simulator."""

from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.planner.score import score
from autopipe.planner.step_bound import split_bound_ns, tightest
from tests.planner.instances import every_split, problem_of, problems
from tests.profiles import chain_profile


@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 12), schedule=st.sampled_from(["1f1b", "gpipe"]))
def test_it_is_the_step_for_equal_stages_and_free_links(stages, micro_batches, schedule):
    problem = problem_of(
        chain_profile([10] * stages, optimizer_ns=3), stages=stages, micro_batches=micro_batches, schedule=schedule
    )
    bounds = tuple(range(stages + 1))
    assert tightest(problem) == (score(problem, bounds).step_ns, bounds)


@settings(deadline=None, max_examples=300)
@given(problems())
def test_no_step_is_ever_under_it(problem):
    found = tightest(problem)
    bounds_of = list(every_split(problem))
    if found is None:
        assert not bounds_of
        return
    least, split = found
    assert split in bounds_of
    assert least == min(split_bound_ns(problem, bounds) for bounds in bounds_of) == split_bound_ns(problem, split)
    for bounds in bounds_of:
        assert split_bound_ns(problem, bounds) <= score(problem, bounds).step_ns


@settings(deadline=None, max_examples=100)
@given(problems(chain=True, max_layers=6))
def test_no_step_of_a_row_of_layers_is_ever_under_it(problem):
    for bounds in every_split(problem):
        assert split_bound_ns(problem, bounds) <= score(problem, bounds).step_ns
