"""What a refusal says, and that its remedies work."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.errors import InfeasibleError
from autopipe.hardware.cluster import Cluster, Device
from autopipe.planner.problem import without_limits
from autopipe.planner.shortage import shortage
from autopipe.planner.stage_tables import CostTables, largest_alone
from autopipe.units import MIB
from tests.planner.instances import every_split, plan, problems
from tests.profiles import cost, layer, profile


def refusal(found, cluster, **options):
    with pytest.raises(InfeasibleError) as caught:
        plan(found, cluster, batch_size=8, **options)
    return str(caught.value)


def heavy(count: int = 6, **figures: int):
    return profile([layer(f"block{index}", [cost(saved_bytes=2 * MIB)], **figures) for index in range(count)])


def test_it_names_stage_layers_bytes_and_limit():
    message = refusal(heavy(parameter_bytes=10 * MIB), Cluster.uniform(2, memory_bytes=100 * MIB))
    assert "stage 0 (block0 to block2) needs 132.00 MiB and its device has 100.00 MiB" in message
    assert "120.00 MiB for parameters, gradients, optimizer state and buffers" in message
    assert "12.00 MiB for activations" in message


def test_each_remedy_works():
    found, cluster = heavy(parameter_bytes=10 * MIB), Cluster.uniform(2, memory_bytes=100 * MIB)
    message = refusal(found, cluster)
    memory, gpus = (int(re.search(pattern, message)[1]) for pattern in (r"--memory (\d+)MiB", r"--gpus (\d+)"))
    plan(found, Cluster.uniform(2, memory_bytes=memory * MIB), batch_size=8)
    plan(found, Cluster.uniform(gpus, memory_bytes=100 * MIB), batch_size=8)
    with pytest.raises(InfeasibleError):
        plan(found, Cluster.uniform(2, memory_bytes=(memory - 1) * MIB), batch_size=8)
    with pytest.raises(InfeasibleError):
        plan(found, Cluster.uniform(gpus - 1, memory_bytes=100 * MIB), batch_size=8)


def test_gpipe_that_holds_too_much_is_told_of_1f1b():
    found, cluster = heavy(parameter_bytes=MIB), Cluster.uniform(2, memory_bytes=30 * MIB)
    assert "--schedule 1f1b" in refusal(found, cluster, schedule="gpipe")
    assert plan(found, cluster, batch_size=8, schedule="1f1b").schedule == "1f1b"


def test_large_micro_batches_are_told_of_smaller_ones():
    costs = [cost(saved_bytes=size * MIB) for size in (1, 4)]
    found = profile([layer(name, costs) for name in "ab"], micro_batches=(1, 4), loss=[cost(0), cost(0)])
    message = refusal(found, Cluster.uniform(2, memory_bytes=3 * MIB), micro_batch_size=4)
    assert "--micro-batch 1" in message


def test_a_layer_that_fits_nowhere_is_named_and_more_devices_are_not_offered():
    layers = [layer("small", [cost()]), layer("vast", [cost()], parameter_bytes=100 * MIB)]
    message = refusal(profile(layers), Cluster.uniform(2, memory_bytes=100 * MIB))
    assert "(vast) needs 400.00 MiB" in message
    assert "--gpus" not in message


def test_unequal_devices_are_each_offered_more():
    cluster = Cluster(devices=(Device(memory_bytes=10 * MIB), Device(memory_bytes=20 * MIB)))
    assert "MiB more on every device" in refusal(heavy(parameter_bytes=10 * MIB), cluster)


@settings(deadline=None)
@given(problems())
def test_the_closest_split_is_the_closest_of_all(problem):
    costs = CostTables(problem.levels, problem.grid)

    def excess(bounds):
        return max(
            int(
                costs.memory(0, s, problem.stages, largest_alone(problem.moments[s], s), problem.micro_batches)[
                    bounds[s], bounds[s + 1]
                ]
            )
            - (problem.limits[s] or 1 << 40)
            for s in range(problem.stages)
        )

    free = without_limits(problem)
    assert shortage(problem).excess_bytes == max(0, min(excess(bounds) for bounds in every_split(free)))


@settings(deadline=None, max_examples=50)
@given(limit=st.integers(1, 400))
def test_the_memory_asked_for_is_the_least_that_does(limit):
    found = heavy(4, parameter_bytes=3 * MIB)
    try:
        plan(found, Cluster.uniform(2, memory_bytes=limit * MIB), batch_size=8, micro_batch_size=1)
    except InfeasibleError as error:
        asked = int(re.search(r"--memory (\d+)MiB", str(error))[1])
        assert asked > limit
        plan(found, Cluster.uniform(2, memory_bytes=asked * MIB), batch_size=8, micro_batch_size=1)
