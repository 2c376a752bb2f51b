"""A rank that computes slower than planned is named with its cause, and a plan for its speed is offered."""

import copy
import time
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import autopipe
from autopipe.costs.planned import planned_edges, planned_stages
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import RankTimeline, Timeline
from autopipe.errors import InputError
from autopipe.executor.drift import find_drift, offer
from autopipe.executor.drift_watch import DriftWatch
from autopipe.executor.pipeline import Pipeline
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


def test_a_slow_replica_is_named_and_gets_its_own_speed() -> None:
    document = profile([layer(f"layer{i}", [cost(1000)]) for i in range(12)], micro_batches=(2,))
    request = Request(batch_size=16, micro_batch_size=2, schedule="1f1b", stages=2, replicas=2)
    made = plan(document, Cluster.uniform(4), request)
    usual, slow = (measured_replica(made, factor) for factor in (1.0, 1.5))
    rows = (usual[0], usual[0], usual[1], slow[1])
    step = Timeline(source="measured", schedule="1f1b", micro_batches=made.micro_batches, step_ns=1, ranks=rows)
    report = find_drift(made, [step])
    assert [(rank.rank, rank.replica) for rank in report.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert report.slow == (1,)
    assert "rank 1 (stage 1, replica 1) is 50 % slower than planned" in str(report)
    assert report.step_ns > made.step_ns
    assert offer(report, made, document).plan.data_parallel_size == 2


def measured_replica(made: Plan, factor: float) -> tuple[RankTimeline, ...]:
    stages = [
        msgspec.structs.replace(
            stage, forward_ns=round(stage.forward_ns * factor), backward_ns=round(stage.backward_ns * factor)
        )
        for stage in planned_stages(made)
    ]
    step = run(make("1f1b", stages=2, micro_batches=made.micro_batches), stages, planned_edges(made))
    return tuple(RankTimeline(rank=rank, spans=spans, peak_in_flight=1) for rank, spans in enumerate(step.spans))


def trained(pipe: Pipeline, optimizer: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    losses = []
    for step in steps:
        x, y = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(step))
        losses.append(pipe.step(x, target=y))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def optimizer_of(pipe: Pipeline) -> torch.optim.Optimizer:
    return torch.optim.AdamW(pipe.parameters(), lr=1e-2)


def test_a_pipeline_warns_of_a_slow_rank_and_goes_on_with_the_offered_plan_as_if_nothing_had_been(
    tmp_path: Path,
) -> None:
    class Slow(nn.Linear):
        wait_s = 0.001

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(self.wait_s)
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(*(Slow(8, 8) for _ in range(8)))
    twin, undisturbed = copy.deepcopy(model), copy.deepcopy(model)
    recorded = autopipe.profile(
        model,
        (torch.randn(2, 8),),
        loss_fn=nn.functional.mse_loss,
        target=torch.randn(2, 8),
        leaf=[Slow],
        micro_batches=(2,),
        budget_s=0.2,
    )
    document = msgspec.structs.replace(
        recorded,
        layers=tuple(
            msgspec.structs.replace(
                one,
                costs=tuple(
                    msgspec.structs.replace(
                        c, forward_ns=1_000_000, backward_ns=100_000, input_grad_ns=None, weight_grad_ns=None
                    )
                    for c in one.costs
                ),
            )
            for one in recorded.layers
        ),
    )
    made = autopipe.partition(document, gpus=2, batch_size=8, micro_batch_size=2, schedule="1f1b", stages=2, replicas=1)
    pipe = autopipe.pipeline(model, plan=made, loss_fn=nn.functional.mse_loss)
    watch = pipe.watch_drift(every=2, threshold=0.5)
    with pytest.raises(InputError, match="no step was observed"):
        watch.offer(document)
    for module in list(model)[4:]:
        module.wait_s = 0.005
    optimizer = optimizer_of(pipe)
    with pytest.warns(UserWarning, match=r"rank 1 \(stage 1\) is .* slower than planned"):
        losses = trained(pipe, optimizer, range(4))
    offered = watch.offer(document)
    assert offered.gain > 0.1
    assert offered.plan.stages[1].end - offered.plan.stages[1].begin < 4
    pipe.save(tmp_path, optimizer=optimizer)
    pipe.close()

    moved = autopipe.pipeline(twin, plan=offered.plan, loss_fn=nn.functional.mse_loss)
    ours = optimizer_of(moved)
    moved.load(tmp_path, optimizer=ours)
    losses += trained(moved, ours, range(4, 7))
    moved.close()
    plain = autopipe.pipeline(undisturbed, plan=made, loss_fn=nn.functional.mse_loss)
    wanted = trained(plain, optimizer_of(plain), range(7))
    plain.close()
    assert [float(loss) for loss in losses] == [float(loss) for loss in wanted]


def test_a_watch_needs_a_plan_and_a_threshold() -> None:
    _, made = planned()
    for words in ({"every": 0, "threshold": 0.1}, {"every": 1, "threshold": -1.0}):
        with pytest.raises(InputError, match="pass"):
            DriftWatch(made, lambda: measured(made), lambda make: make(4), is_speaker=True, **words)
