"""Numbers of fewer bits: autocast, gradient scaling, half parameters, boundaries that travel small."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.executor.grad_scaler import GradScaler
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from tests.executor.pipes import thread_pipe, twins
from tests.models import JOBS, mlp
from tests.processes import ProcessPool
from tests.reference import differences, even_bounds, plain_step


def pipe_of(name: str, stages: int, **options: Any) -> tuple[Pipeline, nn.Module]:
    """Return a model as a pipeline, over the processes of a group if there is one, and its plain twin."""
    job = JOBS[name]
    model, plain = twins(job.build)
    recording = record(model, (job.draw(8)[0],))
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), stages),
        stage_ranks=tuple(range(stages)),
        schedule="1f1b",
        micro_batches=4,
        recompute=("blocks.0.up",) if name == "gpt" else (),
    )
    ranks = None if torch.distributed.is_initialized() else stages
    return Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss, ranks=ranks, **options), plain


def under_autocast(rank: int, stages: int) -> list[str]:
    job = JOBS["gpt"]
    pipe, plain = pipe_of("gpt", stages)
    wrong = []
    optimizers = [torch.optim.SGD(ps, lr=0.1) for ps in (pipe.parameters(), plain.parameters())]
    torch.manual_seed(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            x, y = job.draw(8)
            loss = pipe.step(x, target=y)
            total = 0.0
            for xi, yi in zip(x.split(2), y.split(2), strict=True):
                part = job.loss(plain(xi), yi) / 4
                with torch.autocast("cpu", enabled=False):
                    part.backward()
                total += part.detach()
            torch.clear_autocast_cache()
            if not torch.equal(loss, total):
                wrong.append(f"loss {loss} against {total}")
            theirs = dict(plain.named_parameters())
            wrong += [n for n, p in pipe.named_parameters() if not torch.allclose(p.grad, theirs[n].grad, rtol=1e-5)]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return wrong


def test_autocast_reaches_every_stage_and_no_backward(processes: ProcessPool) -> None:
    assert processes.run(under_autocast, 3, 3) == [[]] * 3
    assert under_autocast(0, 3) == []


def toggled(rank: int) -> list[str]:
    """Train with autocast on, off, and on in another dtype; return what differs from the plain model."""
    job = JOBS["mlp"]
    pipe, plain = pipe_of("mlp", 3)
    torch.manual_seed(5)
    wrong = []
    for dtype in (torch.bfloat16, None, torch.float16, None, torch.bfloat16):
        x, y = job.draw(8)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = pipe.step(x, target=y)
            evaluated = pipe.evaluate(x, target=y)
            parts = [job.loss(plain(xi), yi) / 4 for xi, yi in zip(x.split(2), y.split(2), strict=True)]
        for part in parts:
            part.backward()
        total = sum(part.detach() for part in parts)
        if not torch.equal(loss, total) or not torch.equal(evaluated, total):
            wrong.append(f"loss {loss}, evaluated {evaluated}, against {total}")
    theirs = dict(plain.named_parameters())
    pipe.close()
    return wrong + [name for name, p in pipe.named_parameters() if not torch.equal(p.grad, theirs[name].grad)]


def test_autocast_may_change_from_step_to_step(processes: ProcessPool) -> None:
    assert processes.run(toggled, 3) == [[]] * 3
    assert toggled(0) == []


class TwoFaced(nn.Module):
    """Gives its second layer numbers of fewer bits in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x.to(torch.float32 if self.training else torch.bfloat16).tanh()
        return self.second(x.float())


def test_training_and_evaluation_may_send_other_dtypes() -> None:
    model, plain = twins(TwoFaced)
    x = torch.randn(8, 4)
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=2, loss_fn=functional.mse_loss)
    for mode in (True, False, True):
        wanted = plain_step(plain.train(mode), functional.mse_loss, (x,), x, 2)
        assert torch.equal(pipe.train(mode).step(x, target=x), wanted)
    pipe.close()


def overflowing(rank: int, fused: bool) -> tuple[list[float], list[bool]]:
    """Return the scales of ten steps, and in which of them parameters stayed: stage 0 overflows in the third, fifth."""
    job = JOBS["mlp"]
    pipe, _ = pipe_of("mlp", 4)
    scaler = GradScaler(pipe, init_scale=1024.0, growth_interval=3)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01, fused=fused)
    scales, stayed = [], []
    for step in range(10):
        x, y = job.draw(8)
        pipe.step(x, target=y, scale=scaler.get_scale())
        if step in (2, 4) and pipe.is_first:
            next(pipe.parameters()).grad.view(-1)[0] = float("inf")
        before = [p.detach().clone() for p in pipe.parameters()]
        if step % 2:
            scaler.unscale_(optimizer)
            pipe.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        stayed.append(all(map(torch.equal, before, pipe.parameters())))
    return scales, stayed


@pytest.mark.case(27)
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_on_one_stage_makes_all_skip_and_scales_stay_the_same(processes: ProcessPool, fused: bool) -> None:
    """Case 27; a fused optimizer unscales by itself."""
    outcomes = processes.run(overflowing, 4, fused)
    scales = [1024, 1024, 512, 512, 256, 256, 256, 512, 512, 512]
    stayed = [step in (2, 4) for step in range(10)]
    assert [*outcomes, overflowing(0, fused)] == [(scales, stayed)] * 5


def test_scaled_and_unscaled_gradients_are_the_plain_ones() -> None:
    job = JOBS["mlp"]
    pipe, plain = pipe_of("mlp", 2)
    scaler = GradScaler(pipe, init_scale=2.0**10)
    x, y = job.draw(8)
    pipe.step(x, target=y, scale=scaler.get_scale())
    scaler.unscale_(torch.optim.SGD(pipe.parameters(), lr=0.1))
    plain_step(plain, job.loss, (x,), y, 4)
    theirs = dict(plain.named_parameters())
    assert [n for n, p in pipe.named_parameters() if not torch.equal(p.grad, theirs[n].grad)] == []
    pipe.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_any_dtype_train_like_the_plain_model(dtype: torch.dtype) -> None:
    model, plain = twins(lambda: mlp().to(dtype))
    x, y = (torch.randn(8, 64, dtype=dtype) for _ in range(2))
    pipe = thread_pipe(model, (x,), stages=3, micro_batches=4, loss_fn=functional.mse_loss, schedule="zb-h1")
    for _ in range(2):
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
    assert differences(model, plain, set()) == []
    pipe.close()


class Rounding(torch.autograd.Function):
    """What a boundary does to a tensor that travels in bfloat16, and to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.bfloat16().float()


def squeezed(rank: int) -> list[str]:
    job = JOBS["mlp"]
    pipe, plain = pipe_of("mlp", 3, boundary_dtype=torch.bfloat16)

    def rounded(x: Tensor) -> Tensor:
        for index, module in enumerate(plain):
            x = module(x)
            if index in (3, 7):
                x = Rounding.apply(x)
        return x

    torch.manual_seed(2)
    wrong = []
    for _ in range(2):
        x, y = job.draw(8)
        loss = pipe.step(x, target=y)
        total = 0.0
        for xi, yi in zip(x.split(2), y.split(2), strict=True):
            part = job.loss(rounded(xi), yi) / 4
            part.backward()
            total += part.detach()
        if not torch.equal(loss, total):
            wrong.append(f"loss {loss} against {total}")
    theirs = dict(plain.named_parameters())
    wrong += [n for n, p in pipe.named_parameters() if not torch.equal(p.grad, theirs[n].grad)]
    return wrong


def test_boundaries_travel_rounded_where_that_is_asked_for(processes: ProcessPool) -> None:
    assert processes.run(squeezed, 3) == [[]] * 3
    assert squeezed(0) == []
