"""Stages under torch.compile train like the plain model, and compile once more at most for a new kind of batch."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from autopipe.errors import InputError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.named import make
from autopipe.stages.compilation import Compilation
from tests.executor.pipes import thread_pipe, twins
from tests.models import JOBS
from tests.processes import ProcessPool
from tests.reference import even_bounds, plain_step


def compiled(rank: int, name: str, schedule: str, per: str, recompute: tuple[str, ...]) -> tuple[list[str], int, int]:
    """Return what differs from the plain model, how often a stage was compiled before and after a short batch."""
    torch._dynamo.reset()
    job = JOBS[name]
    model, plain = twins(job.build)
    recording = record(model, (job.draw(8)[0],))
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), 2),
        stage_ranks=make(schedule, stages=2, micro_batches=1).stage_ranks,
        schedule=schedule,
        micro_batches=4,
        recompute=recompute,
    )
    counter = CompileCounterWithBackend("aot_eager")
    compilation = Compilation(per=per, options={"backend": counter})
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss, compilation=compilation, **where())
    torch.manual_seed(4)
    optimizers = [torch.optim.AdamW(ps, lr=1e-3, foreach=True) for ps in (pipe.parameters(), plain.parameters())]
    wrong, counts = [], []
    for batch in (8, 8, 8, 7):
        x, y = job.draw(batch)
        loss, wanted = pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4)
        if not torch.allclose(loss, wanted, rtol=1e-5):
            wrong.append(f"loss {loss} against {wanted}")
        theirs = dict(plain.named_parameters())
        wrong += [
            n for n, p in pipe.named_parameters() if not torch.allclose(p.grad, theirs[n].grad, rtol=1e-4, atol=1e-6)
        ]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        counts.append(counter.frame_count)
    pipe.close()
    return wrong, counts[2], counts[3]


def where() -> dict[str, Any]:
    return {} if torch.distributed.is_initialized() else {"ranks": 2}


@pytest.mark.case(28)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_compiled_stage_is_compiled_once_and_once_more_for_a_short_batch(
    processes: ProcessPool, schedule: str
) -> None:
    for wrong, full, short in processes.run(compiled, 2, "gpt", schedule, "stage", ()):
        assert wrong == []
        assert full <= 2
        assert short <= full + 1


@pytest.mark.parametrize("recompute", [(), ("0", "2", "8")])
def test_layers_are_compiled_one_by_one_also_where_they_are_recomputed(recompute: tuple[str, ...]) -> None:
    wrong, full, short = compiled(0, "mlp", "1f1b", "layer", recompute)
    assert wrong == []
    layers = 6
    assert full <= 2 * layers
    assert short <= full + 2 * layers


def test_layers_with_several_results_are_compiled_beside_recomputed_ones() -> None:
    job = JOBS["gpt"]
    model, plain = twins(job.build)
    x, y = job.draw(4)
    layers = [layer.name for layer in record(model, (x,)).graph.layers]
    pipe = thread_pipe(
        model,
        (x,),
        stages=1,
        micro_batches=2,
        loss_fn=job.loss,
        recomputed=tuple(layers[::3]),
        compilation=Compilation(per="layer", options={"backend": "eager"}),
    )
    assert torch.allclose(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 2), rtol=1e-6)
    pipe.close()


def test_a_schedule_that_splits_backwards_is_warned_of() -> None:
    model, _ = twins(JOBS["mlp"].build)
    with pytest.warns(UserWarning, match="torch compiles each backward as one"):
        pipe = thread_pipe(
            model, (torch.randn(8, 64),), stages=2, micro_batches=4, schedule="zb-h1", compilation=Compilation()
        )
    pipe.close()


def test_what_is_compiled_is_a_stage_or_a_layer() -> None:
    with pytest.raises(InputError, match="neither 'stage' nor 'layer'"):
        Compilation(per="model")


class Droppy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.Dropout(0.5))))


def test_dropout_draws_the_same_masks_in_a_compiled_stage() -> None:
    losses = []
    for compilation in (None, Compilation(options={"backend": "aot_eager"})):
        model, _ = twins(Droppy)
        torch.manual_seed(4)
        x, y = torch.randn(2, 8, 16)
        pipe = thread_pipe(
            model, (x,), stages=2, micro_batches=2, loss_fn=functional.mse_loss, seed=3, compilation=compilation
        )
        losses.append(pipe.step(x, target=y))
        pipe.close()
    assert torch.allclose(*losses, rtol=1e-6)
