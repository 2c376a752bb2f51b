"""A rank that fails: every rank raises the same sentence, and training can go on."""

import copy
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.errors import InputError, MismatchError, StepError
from autopipe.executor.deadlines import Deadlines
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from tests.executor.pipes import thread_pipe, twins
from tests.models import JOBS, mlp
from tests.processes import ProcessPool
from tests.reference import differences, even_bounds, plain_step


class Fuse(nn.Module):
    """Passes its input on, and raises in the forward or backward that it is set to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.left = {"forward": -1, "backward": -1}

    def burn(self, where: str) -> None:
        self.left[where] -= 1
        if self.left[where] == 0:
            raise ValueError(f"the fuse blew in the {where}")

    def forward(self, x: Tensor) -> Tensor:
        self.burn("forward")
        y = x * self.weight
        if y.requires_grad:
            y.register_hook(lambda gradient: self.burn("backward"))
        return y


def fused(at: int = 1) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(8, 8) for _ in range(4)]
    layers.insert(at + 1, Fuse())
    return nn.Sequential(*layers)


loss_fn = nn.functional.mse_loss


@pytest.mark.case(7)
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_rank_that_raises_ends_the_step_everywhere_and_training_goes_on(where: str, at: int) -> None:
    model, plain = twins(lambda: fused(at))
    x, y = torch.randn(2, 8, 8)
    pipe = thread_pipe(model, (x,), stages=4, micro_batches=4, loss_fn=loss_fn)
    fuse = next(module for module in model if isinstance(module, Fuse))
    for round in range(2):  # in the first step no shape is known yet, in the second all are
        fuse.left[where] = 3
        with pytest.raises(
            StepError, match=rf"rank \d failed in [FB]\d\.2 \(ValueError\): the fuse blew in the {where}"
        ):
            pipe.step(x, target=y)
        pipe.reset()
        model.zero_grad()
        plain.zero_grad()
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, loss_fn, (x,), y, 4)), round
        assert differences(model, plain, set()) == []
        model.zero_grad()


def test_bad_inputs_are_told_on_every_rank() -> None:
    job = JOBS["mlp"]
    model, _ = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=2, micro_batches=2, loss_fn=job.loss)
    with pytest.raises(InputError, match="0 samples"):
        pipe.step(torch.zeros(0, 64), target=torch.zeros(0, 64))
    with pytest.raises(StepError, match="3 targets came with 8 inputs"):
        pipe.step(torch.zeros(8, 64), target=torch.zeros(3, 64))
    pipe.reset()
    x, y = job.draw(8)
    assert torch.isfinite(pipe.step(x, target=y))


def fail_on_rank(rank: int) -> tuple[str, float, bool]:
    torch.manual_seed(0)
    model = fused()
    plain = copy.deepcopy(model)
    x, y = torch.randn(2, 8, 8)
    recording = record(model, (x,))
    bounds = even_bounds(len(recording.graph.layers), 4)
    layout = Layout(bounds=bounds, stage_ranks=(0, 1, 2, 3), schedule="1f1b", micro_batches=4)
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=loss_fn)
    pipe.step(x, target=y)
    next(module for module in model if isinstance(module, Fuse)).left["forward"] = 3
    start = time.monotonic()
    message = ""
    try:
        pipe.step(x, target=y)
    except StepError as error:
        message = str(error)
    seconds = time.monotonic() - start
    pipe.reset()
    model.zero_grad()
    loss = pipe.step(x, target=y)
    return message, seconds, torch.equal(loss, plain_step(plain, loss_fn, (x,), y, 4))


@pytest.mark.case(7)
def test_processes_all_raise_the_first_ranks_message(processes: ProcessPool) -> None:
    results = processes.run(fail_on_rank, 4)
    messages = {message for message, _, _ in results}
    assert len(messages) == 1
    assert "failed in F1.2 (ValueError): the fuse blew in the forward" in messages.pop()
    assert max(seconds for _, seconds, _ in results) < 5.0
    assert all(equal for _, _, equal in results)


def start_differently(rank: int) -> str:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    recording = record(model, (torch.zeros(2, 4),))
    bounds = (0, 2, 4) if rank == 0 else (0, 1, 4)
    layout = Layout(bounds=bounds, stage_ranks=(0, 1), schedule="1f1b", micro_batches=2)
    try:
        Pipeline(recording.module, recording.graph, layout, loss_fn=loss_fn)
    except MismatchError as error:
        return str(error)
    return ""


@pytest.mark.case(8)
def test_ranks_with_different_plans_do_not_start(processes: ProcessPool) -> None:
    for message in processes.run(start_differently, 2):
        assert "rank 1 starts with another layout than rank 0" in message


def test_a_plan_for_other_ranks_is_refused() -> None:
    model: Any = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    recording = record(model, (torch.zeros(2, 4),))
    layout = Layout(bounds=(0, 2, 4), stage_ranks=(0, 1), schedule="1f1b", micro_batches=2)
    with pytest.raises(InputError, match="the plan has 2 ranks and 3 are running"):
        Pipeline(recording.module, recording.graph, layout, ranks=3)


class SlowLoss:
    """Takes as long as it is set to."""

    seconds = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return loss_fn(output, target)


def with_slow_loss() -> tuple[Pipeline, SlowLoss]:
    model, _ = twins(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    x, slow = torch.randn(8, 8), SlowLoss()
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=2, loss_fn=slow, deadlines=Deadlines.chosen(0.5))
    pipe.step(x, target=x)
    return pipe, slow


def test_a_thread_rank_that_hangs_is_named_and_the_pipeline_refuses_to_go_on() -> None:
    pipe, slow = with_slow_loss()
    slow.seconds = 30.0
    x, start = torch.randn(8, 8), time.monotonic()
    with pytest.raises(StepError, match=r"rank 1 \(stage 1\) is stuck: it has been in F1\.0 \(forward of stage 1"):
        pipe.step(x, target=x)
    assert time.monotonic() - start < 5.5
    with pytest.raises(StepError, match="cannot be ended"):
        pipe.step(x, target=x)


def test_a_thread_rank_that_was_only_slow_can_go_on_after_reset() -> None:
    pipe, slow = with_slow_loss()
    slow.seconds = 1.0
    x = torch.randn(8, 8)
    with pytest.raises(StepError, match=r"rank 1 \(stage 1\) is stuck"):
        pipe.step(x, target=x)
    slow.seconds = 0.0
    pipe.reset()
    assert torch.isfinite(pipe.step(x, target=x))


def test_a_rank_alone_runs_in_the_thread_that_calls_and_goes_on_after_a_failure() -> None:
    model, plain = twins(mlp)
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    pipe = thread_pipe(model, (x,), stages=1, micro_batches=4, loss_fn=functional.mse_loss)
    threads: list[int] = []

    def note(*_: object) -> None:
        threads.append(threading.get_ident())

    pipe.modules()[0].register_forward_hook(note)
    with pytest.raises(StepError, match=r"F0\.0"):
        pipe.step(torch.randn(8, 7), target=y)
    pipe.reset()
    model.zero_grad()
    pipe.step(x, target=y)
    for inputs, wanted in zip(x.chunk(4), y.chunk(4), strict=True):
        (functional.mse_loss(plain(inputs), wanted) * 0.25).backward()
    assert differences(model, plain, set()) == []
    assert set(threads) == {threading.get_ident()}
    pipe.close()
