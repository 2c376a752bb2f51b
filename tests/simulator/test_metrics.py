"""The figures that speak of a step as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.schedules.comms import chain
from autopipe.schedules.named import make
from autopipe.simulator.events import run, simulate
from autopipe.simulator.metrics import bubble_ratio, busy_ns, imbalance, makespan_ns, utilisation


def test_figures_of_a_step_in_which_one_of_two_ranks_idles_half_the_time():
    assert (utilisation((10, 5), 10), bubble_ratio((10, 5), 10)) == (0.75, 0.25)


def test_imbalance_is_the_slowest_over_the_mean():
    assert imbalance((10, 20, 30)) == 1.5
    assert imbalance((0, 0)) == 1.0


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_imbalance_is_at_least_one(stages):
    assert imbalance(stages) >= 1.0


def test_a_timeline_gives_the_figures_of_its_run():
    stages = [StageCost(forward_ns=ns, backward_ns=2 * ns, optimizer_ns=3) for ns in (4, 6)]
    schedule, edges = make("1f1b", stages=2, micro_batches=3), [EdgeCost(edge=edge) for edge in chain(2)]
    timeline, result = simulate(schedule, stages, edges), run(schedule, stages, edges)
    assert tuple(busy_ns(rank) for rank in timeline.ranks) == result.busy_ns
    assert makespan_ns(timeline) == result.makespan_ns == timeline.step_ns - 3
