"""Schedules by name on given stages, as the planner asks for them."""

import pytest

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.errors import InfeasibleError, InputError
from autopipe.schedules.comms import chain
from autopipe.schedules.named import NAMES, VIRTUAL, make, placement
from autopipe.simulator.timed import timed


def stages(count: int, *, saved_bytes: int = 10) -> list[StageCost]:
    return [
        StageCost(forward_ns=100, backward_ns=200, input_grad_ns=100, weight_grad_ns=100, saved_bytes=saved_bytes)
        for _ in range(count)
    ]


def edges(count: int) -> list[EdgeCost]:
    return [EdgeCost(edge=edge) for edge in chain(count)]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "forward"])
def test_every_named_schedule_is_timed_on_its_own_placement(name):
    virtual = 2 if name in VIRTUAL else 1
    ranks = placement(name, ranks=4, virtual=virtual)
    found = timed(name, stages(4 * virtual), edges(4 * virtual), ranks, 8)
    assert found.schedule == make(name, stages=4, micro_batches=8, virtual=virtual)
    assert found.run.busy_ns == (8 * 300 * virtual,) * 4
    assert found.run.step_ns >= 8 * 300 * virtual


def test_another_placement_than_the_schedules_is_refused():
    with pytest.raises(InputError, match="puts its stages on ranks"):
        timed("zb-v", stages(4), edges(4), (0, 1, 0, 1), 4)


def test_a_fitted_schedule_keeps_within_the_memory():
    free = timed("fitted", stages(4), edges(4), range(4), 12)
    tight = timed("fitted", stages(4), edges(4), range(4), 12, memory_bytes=[30, 30, None, 30])
    assert free.run.step_ns <= timed("zb-h1", stages(4), edges(4), range(4), 12).run.step_ns < tight.run.step_ns
    assert all(tight.run.peak_bytes[rank] <= 30 for rank in (0, 1, 3))


def test_memory_for_no_schedule_is_told():
    with pytest.raises(InfeasibleError, match="Allow more memory"):
        timed("fitted", stages(2), edges(2), range(2), 4, memory_bytes=[5, 5])
