"""A rank that computes slower than planned is named with its cause, and a plan for its speed is offered."""

import msgspec
import pytest

from autopipe.costs.planned import planned_edges, planned_stages
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import RankTimeline, Timeline
from autopipe.errors import InputError
from autopipe.executor.drift import find_drift, offer
from autopipe.hardware.cluster import Cluster
from autopipe.planner import Request, plan
from autopipe.schedules.named import make
from autopipe.simulator.events import run
from tests.profiles import cost, layer, profile


def planned() -> tuple[Profile, Plan]:
    document = profile([layer(f"layer{i}", [cost(1000)]) for i in range(40)], micro_batches=(2,))
    request = Request(batch_size=16, micro_batch_size=2, schedule="1f1b", stages=4, replicas=1)
    return document, plan(document, Cluster.uniform(4), request)


def measured(made: Plan, *, forward: float = 1.0, backward: float = 1.0, overall: float = 1.0) -> Timeline:
    """A step in which the stages of rank 1 take so many times as long as planned, and all ``overall`` times."""
    stages = [
        msgspec.structs.replace(
            stage,
            forward_ns=round(stage.forward_ns * overall * (forward if index == 1 else 1.0)),
            backward_ns=round(stage.backward_ns * overall * (backward if index == 1 else 1.0)),
        )
        for index, stage in enumerate(planned_stages(made))
    ]
    step = run(make("1f1b", stages=4, micro_batches=made.micro_batches), stages, planned_edges(made))
    ranks = tuple(RankTimeline(rank=r, spans=spans, peak_in_flight=1) for r, spans in enumerate(step.spans))
    return Timeline(
        source="measured", schedule="1f1b", micro_batches=made.micro_batches, step_ns=step.step_ns, ranks=ranks
    )


def test_a_rank_slowed_by_30_percent_is_named_with_its_cause_and_a_faster_plan_is_offered() -> None:
    document, made = planned()
    report = find_drift(made, [measured(made, forward=1.3, backward=1.3)])
    assert report.slow == (1,)
    assert str(report).startswith("rank 1 (stage 1) is 30 % slower than planned")
    assert "its device computes at 77 % of its planned speed" in str(report)
    offered = offer(report, made, document)
    assert offered.gain > 0.1
    slowest = min(offered.plan.stages, key=lambda stage: stage.end - stage.begin)
    order = offered.plan.device_order or tuple(range(4))
    assert order[slowest.rank] == 1


def test_a_slow_backward_alone_speaks_of_other_work() -> None:
    _, made = planned()
    report = find_drift(made, [measured(made, backward=1.5)])
    assert report.slow == (1,)
    assert "mostly its backward, so its layers do other work than when they were profiled" in str(report)


def test_what_all_ranks_share_is_no_drift_of_one() -> None:
    _, made = planned()
    assert find_drift(made, [measured(made, overall=1.4)]).slow == ()
    assert find_drift(made, [measured(made, forward=1.1, backward=1.1)]).slow == ()


def test_drift_needs_a_measured_step() -> None:
    _, made = planned()
    with pytest.raises(InputError, match="no step was measured"):
        find_drift(made, [])
