"""Simulated beside measured: every stage's actions, the step and what idles."""

import pytest

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.timeline import Timeline
from autopipe.errors import MismatchError
from autopipe.reporting.timeline_comparison import compare_timelines
from autopipe.schedules.comms import chain
from autopipe.schedules.named import make
from autopipe.simulator.events import simulate


def timeline(scale: int, name: str = "zb-h1", micro_batches: int = 3) -> Timeline:
    parts = {"forward_ns": 100, "backward_ns": 200, "input_grad_ns": 120, "weight_grad_ns": 80}
    stages = [StageCost(**{part: scale * time for part, time in parts.items()}, optimizer_ns=7)] * 2
    schedule = make(name, stages=2, micro_batches=micro_batches)
    return simulate(schedule, stages, [EdgeCost(edge=edge) for edge in chain(2)])


def test_every_stages_parts_step_and_idle_time_have_their_error():
    pairs = compare_timelines(timeline(10), timeline(8))
    assert [pair.name for pair in pairs] == [
        "first to last action",
        "idle, mean rank",
        *(f"stage {stage} {op}" for stage in (0, 1) for op in "FIW"),
    ]
    assert {round(pair.error or 0, 6) for pair in pairs} == {0.25}
    assert pairs[2].measured == 800


def test_timelines_of_other_schedules_are_refused():
    with pytest.raises(MismatchError, match="simulate the plan that was run"):
        compare_timelines(timeline(1), timeline(1, micro_batches=4))
    with pytest.raises(MismatchError, match="simulate the plan that was run"):
        compare_timelines(timeline(1), timeline(1, name="1f1b"))
