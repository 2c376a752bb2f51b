"""The public functions, used as a user would: one call, from files, over threads and processes."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopipe
from autopipe.documents.files import decode, encode, save
from autopipe.executor.tied import find_ties
from tests.models import CNN, GPT, JOBS, token_loss
from tests.processes import ProcessPool
from tests.reference import differences, plain_step

BUDGET_S = 0.2


def plan_for(model: nn.Module, job: Any, gpus: int, batch: int = 8) -> autopipe.Plan:
    x, y = job.draw(batch)
    profile = autopipe.profile(model, (x,), target=y, loss_fn=job.loss, micro_batches=(1, 2), budget_s=BUDGET_S)
    return autopipe.partition(profile, gpus=gpus, batch_size=batch)


@pytest.mark.case(20)
@pytest.mark.parametrize("name", JOBS)
def test_one_call_gives_a_pipeline_that_trains_like_the_plain_model(name: str) -> None:
    job = JOBS[name]
    torch.manual_seed(0)
    model = job.build()
    plain = copy.deepcopy(model)
    x, y = job.draw(8)
    pipe = autopipe.pipeline(model, example=(x,), target=y, loss_fn=job.loss, batch_size=8, ranks=2, budget_s=BUDGET_S)
    assert pipe.plan is not None
    loss = pipe.step(x, target=y)
    assert torch.equal(loss, plain_step(plain, job.loss, (x,), y, pipe.plan.micro_batches))
    assert differences(model, plain, {"tokens.weight"}) == []
    assert pipe.plan.pipeline_size == 2
    assert all(stage.end > stage.begin for stage in pipe.plan.stages)
    assert pipe.plan.stages[-1].end == len(pipe.plan.graph.layers)


def train_on_rank(rank: int, plan: str | None) -> tuple[float, float, list[str], int, int]:
    """Return the loss, the plain one, what differs, the parameters here, and how often tied ones are held again."""
    job = JOBS["gpt"]
    torch.manual_seed(0)
    model = job.build()
    plain = copy.deepcopy(model)
    x, y = job.draw(8)
    if plan is None:
        pipe = autopipe.pipeline(model, example=(x,), target=y, loss_fn=job.loss, batch_size=8, budget_s=BUDGET_S)
    else:
        pipe = autopipe.pipeline(model, plan=plan, loss_fn=job.loss)
    loss = pipe.step(x if pipe.is_first else None, target=y if pipe.is_last else None)
    wanted = plain_step(plain, job.loss, (x,), y, pipe.plan.micro_batches)
    mine = {name for name, _ in pipe.named_parameters()}
    found = [name for name in differences(model, plain, {"tokens.weight"}) if name in mine]
    whole = pipe.full_state_dict()
    assert whole.keys() == model.state_dict().keys()
    assert len(pipe.timeline().ranks) == pipe.plan.pipeline_size
    graph, layout = pipe.plan.graph, pipe.layout
    again = sum(len(tie.ranks) - 1 for tie in find_ties(graph, layout.bounds, layout.stage_ranks))
    return loss.item(), wanted.item(), found, len(mine), again


def test_one_call_over_processes_plans_on_the_first_rank(processes: ProcessPool) -> None:
    results = processes.run(train_on_rank, 2, None)
    assert all(loss == wanted and found == [] for loss, wanted, found, *_ in results)
    again = results[0][-1]  # none where the first and the last stage share a rank
    assert sum(count for *_, count, _ in results) == len(list(GPT().parameters())) + again


def test_a_plan_file_trains_over_processes(processes: ProcessPool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plan = plan_for(GPT(), JOBS["gpt"], gpus=2)
    save(plan, tmp_path / "plan.json")
    for loss, wanted, found, *_ in processes.run(train_on_rank, 2, str(tmp_path / "plan.json")):
        assert loss == wanted
        assert found == []


class Counted(GPT):
    """A GPT that counts its forwards."""

    forwards = 0

    def forward(self, ids: Tensor) -> Tensor:
        type(self).forwards += 1
        return super().forward(ids)


def state_of(model: nn.Module) -> Any:
    """Return all that a user could find changed in a model, and the random state."""
    tensors = {name: (id(t), t.detach().clone()) for name, t in [*model.named_parameters(), *model.named_buffers()]}
    gradients = {name: p.grad if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    modules = [
        (name, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), *sorted(
            (key, repr(value)) for key, value in vars(m).items() if isinstance(value, (int, float, str, bool, list))
        ))
        for name, m in model.named_modules()
    ]  # fmt: skip
    return tensors, gradients, modules, torch.get_rng_state(), random.getstate()


def same(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(before[key], after[key]) for key in before)
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(same(a, b) for a, b in zip(before, after, strict=True))
    return before == after


@pytest.mark.case(24)
@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_capture_profile_plan_and_build_leave_no_trace(name: str) -> None:
    job = JOBS[name]
    model = {"gpt": GPT, "cnn": CNN}[name]()
    x, y = job.draw(8)
    job.loss(model(x), y).backward()  # so that there are gradients and counters to disturb
    model.train()
    before = state_of(model)
    autopipe.capture(model, (x,))
    plan = plan_for(model, JOBS[name], gpus=2)
    assert same(before[:3], state_of(model)[:3])
    random_state = torch.get_rng_state()
    autopipe.pipeline(model, plan=plan, loss_fn=job.loss)
    autopipe.split(model, plan)
    assert same(before[:3], state_of(model)[:3])
    assert torch.equal(random_state, torch.get_rng_state())


@pytest.mark.case(24)
def test_random_state_is_put_back_after_capture_and_profile() -> None:
    job = JOBS["cnn"]
    model, (x, y) = CNN(), job.draw(4)
    before = torch.get_rng_state()
    autopipe.capture(model, (x,))
    assert torch.equal(before, torch.get_rng_state())
    autopipe.profile(model, (x,), target=y, loss_fn=job.loss, budget_s=BUDGET_S)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.case(24)
def test_building_from_a_plan_never_runs_the_model() -> None:
    job = JOBS["gpt"]
    model = Counted()
    plan = decode(encode(plan_for(model, job, gpus=3)), autopipe.Plan)
    Counted.forwards = 0
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=token_loss)
    autopipe.split(model, plan)
    assert Counted.forwards == 0
    x, y = job.draw(8)
    assert torch.isfinite(pipe.step(x, target=y))


def test_a_plan_for_another_model_is_refused_with_the_difference() -> None:
    plan = plan_for(GPT(), JOBS["gpt"], gpus=2)
    with pytest.raises(autopipe.MismatchError, match=r"tokens\.weight.*64.*32|tokens\.weight.*32.*64"):
        autopipe.pipeline(GPT(width=32), plan=plan, loss_fn=token_loss)


def test_split_gives_modules_that_compose_to_the_model() -> None:
    model = CNN().eval()
    job = JOBS["cnn"]
    plan = plan_for(model, job, gpus=3)
    stages = autopipe.split(model, plan)
    names = {name for stage in stages for name in stage.state_dict()}
    assert names == set(model.state_dict())
    x, _ = job.draw(4)
    assert "Conv2d" in repr(stages[0])
    # A residual may cross two boundaries at once, so values are handed on by name.
    values: dict[str, Tensor] = {}
    for index, stage in enumerate(stages):
        takes = [node.name for node in stage.graph.nodes if node.op == "placeholder"]
        gives = next(node for node in stage.graph.nodes if node.op == "output").args[0]
        result = stage(x) if index == 0 else stage(*(values[name] for name in takes))
        if index < len(stages) - 1:
            values.update(zip((node.name for node in gives), result, strict=True))
    assert torch.equal(result, model(x))


def test_a_captured_graph_goes_through_json() -> None:
    graph = autopipe.capture(GPT(), (torch.zeros(2, 16, dtype=torch.int64),))
    assert decode(encode(graph), autopipe.Graph) == graph


def test_without_plan_or_example_there_is_a_sentence() -> None:
    with pytest.raises(autopipe.InputError, match="pass example="):
        autopipe.pipeline(GPT(), ranks=2)


def test_devices_must_be_said_once() -> None:
    plan = plan_for(GPT(), JOBS["gpt"], gpus=2)
    with pytest.raises(autopipe.InputError, match="ranks=3 and 2 devices disagree"):
        autopipe.pipeline(GPT(), plan=plan, devices=["cpu", "cpu"], ranks=3)


def test_one_call_takes_the_granularity_of_capture() -> None:
    job = JOBS["gpt"]
    torch.manual_seed(0)
    model = job.build()
    plain = copy.deepcopy(model)
    x, y = job.draw(8)
    pipe = autopipe.pipeline(
        model, example=(x,), target=y, loss_fn=job.loss, ranks=2, budget_s=BUDGET_S, granularity=4, leaf=("blocks.1",)
    )
    assert pipe.plan is not None
    names = [layer for stage in pipe.plan.stages for layer in stage.layers]
    assert "blocks.1" in names
    assert len(names) < len(autopipe.capture(model, (x,)).layers)
    assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, pipe.plan.micro_batches))
    assert differences(model, plain, {"tokens.weight"}) == []
    pipe.close()
