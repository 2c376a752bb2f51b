"""Tables of a planning problem."""

from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner.problem import objective_ns, pace_ns
from autopipe.planner.score import score
from tests.planner.instances import every_split, problem_of, problems
from tests.profiles import chain_profile, cost, layer, profile


def test_no_cut_is_allowed_where_it_is_forbidden():
    found = profile([layer(name, [cost()]) for name in "abcd"], forbidden_cuts=(2,))
    problem = problem_of(found, stages=2, micro_batches=1)
    assert list(every_split(problem)) == [(0, 1, 4), (0, 3, 4)]


def test_an_interval_that_does_not_fit_is_legal_and_not_allowed():
    cluster = Cluster.uniform(2, memory_bytes=90)
    problem = problem_of(chain_profile([1] * 3, parameter_bytes=20), cluster=cluster, stages=2, micro_batches=1)
    assert problem.legal[0][0, 2]
    assert not problem.allowed[0][0, 2]
    assert problem.allowed[0][0, 1]


def test_the_pace_is_the_slowest_stage():
    problem = problem_of(chain_profile([10, 20, 30]), stages=2, micro_batches=4)
    assert (pace_ns(problem, (0, 1, 3)), pace_ns(problem, (0, 2, 3))) == (150, 90)


def test_the_pace_is_a_link_that_is_slower_than_any_stage():
    cluster = Cluster.uniform(2, intra_node=Link(bytes_per_s=10**9))
    problem = problem_of(chain_profile([1, 1], crossing_bytes=500), cluster=cluster, stages=2, micro_batches=100)
    assert pace_ns(problem, (0, 1, 2)) == 503


def test_the_pace_is_a_round_trip_over_what_may_be_in_flight_meanwhile():
    """Rank 0 of 1F1B on two stages has two in flight; a trip of 30 + 2 * 40 + 30 lets one in every 70."""
    cluster = Cluster.uniform(2, intra_node=Link(latency_ns=40))
    problem = problem_of(chain_profile([10, 10]), cluster=cluster, stages=2, micro_batches=10)
    assert pace_ns(problem, (0, 1, 2)) == 70
    assert pace_ns(problem_of(chain_profile([10, 10]), cluster=cluster, stages=2, micro_batches=2), (0, 1, 2)) == 30


@given(stages=st.integers(1, 5), micro_batches=st.integers(1, 12))
def test_the_objective_is_the_step_for_equal_stages_and_free_links(stages, micro_batches):
    problem = problem_of(chain_profile([10] * stages, optimizer_ns=7), stages=stages, micro_batches=micro_batches)
    bounds = tuple(range(stages + 1))
    assert objective_ns(problem, bounds) == score(problem, bounds).step_ns


@settings(deadline=None)
@given(problems())
def test_every_allowed_split_fits_when_it_is_simulated(problem):
    for bounds in every_split(problem):
        for peak, limit in zip(score(problem, bounds).run.peak_bytes, problem.limits, strict=True):
            assert limit is None or peak <= limit
