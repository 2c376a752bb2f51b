"""Layers that are recomputed in the backward change memory and time, and no number."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from autopipe.errors import InputError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.profiler.memory import StorageLedger
from autopipe.recorder import record
from autopipe.stages.recompute import recompute_layers
from autopipe.stages.split import split
from tests.executor.pipes import thread_pipe, twins
from tests.models import GPT, JOBS, mlp
from tests.reference import differences, plain_step

EXEMPT = {"gpt": {"tokens.weight"}}


@pytest.mark.case(13)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)])
def test_recomputed_layers_train_like_the_plain_model(name: str, schedule: str, virtual: int) -> None:
    job = JOBS[name]
    model, plain = twins(job.build)
    pipe = thread_pipe(
        model,
        (job.draw(8)[0],),
        stages=2,
        micro_batches=4,
        loss_fn=job.loss,
        schedule=schedule,
        virtual=virtual,
        recompute=True,
    )
    for _ in range(2):
        x, y = job.draw(8)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4))
    assert differences(model, plain, EXEMPT.get(name, set())) == []
    pipe.close()


class Counting(nn.Module):
    """A layer that counts its runs, changes its input in place, and whose result depends on a buffer it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(1.5)
        self.seen.add_(x.detach().mean(0))
        return self.linear(x) * self.seen.tanh()


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Counting() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h2"])
def test_inputs_changed_in_place_and_buffers_that_matter_are_seen_as_they_were(schedule: str) -> None:
    model, plain = twins(Rows)
    x, y = torch.randn(2, 8, 8)
    pipe = thread_pipe(
        model, (x,), stages=2, micro_batches=4, loss_fn=functional.mse_loss, schedule=schedule, recompute=True
    )
    for _ in range(3):
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
    assert differences(model, plain, set()) == []
    pipe.close()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_layer_runs_twice_for_each_micro_batch_even_when_its_backward_is_split(schedule: str) -> None:
    model = mlp()
    runs: Counter[str] = Counter()
    for name, module in model.named_children():
        module.register_forward_hook(lambda *_, name=name: runs.update([name]))
    job = JOBS["mlp"]
    pipe = thread_pipe(
        model, (job.draw(8)[0],), stages=2, micro_batches=4, loss_fn=job.loss, schedule=schedule, recompute=True
    )
    runs.clear()
    x, y = job.draw(8)
    pipe.step(x, target=y)
    # Once all that the backward reads is there, the rest of a layer (here its ReLU, unless it is saved) is left out.
    assert {runs[name] for name, module in model.named_children() if isinstance(module, nn.Linear)} == {8}
    pipe.close()


@pytest.mark.case(14)
def test_dropout_is_the_same_in_the_second_run() -> None:
    losses = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3))))
        x, y = torch.randn(2, 8, 16)
        pipe = thread_pipe(
            model, (x,), stages=2, micro_batches=4, loss_fn=functional.mse_loss, recompute=recompute, seed=1
        )
        loss = pipe.step(x, target=y)
        losses.append((loss, [p.grad for p in model.parameters()]))
        pipe.close()
    assert torch.equal(losses[0][0], losses[1][0])
    assert all(map(torch.equal, losses[0][1], losses[1][1]))


def test_the_second_run_is_under_the_same_autocast() -> None:
    results = []
    for recompute in (False, True):
        model, _ = twins(mlp)
        job = JOBS["mlp"]
        torch.manual_seed(1)
        x, y = job.draw(8)
        pipe = thread_pipe(
            model, (x,), stages=2, micro_batches=4, loss_fn=job.loss, schedule="zb-h1", recompute=recompute
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = pipe.step(x, target=y)
        results.append((loss, *(p.grad for p in model.parameters())))
        pipe.close()
    assert all(map(torch.equal, *results))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return function(*args, **(kwargs or {}))


def whole(model: nn.Module, x: Tensor, *, policy: Any = None, recompute: bool = True) -> nn.Module:
    """Return a model as one stage whose layers are all recomputed."""
    recording = record(model, (x,))
    stage = split(recording.module, recording.graph, (0, len(recording.graph.layers)))[0].module
    if recompute:
        recompute_layers(stage, {layer.name: layer.nodes for layer in recording.graph.layers}, policy=policy)
    return stage


def test_a_policy_keeps_the_results_that_it_names() -> None:
    x = torch.randn(4, 16)
    counts = []
    for policy in (None, [torch.ops.aten.addmm.default]):
        model, plain = twins(lambda: nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.Tanh()))))
        stage = whole(model, x, policy=policy)
        with Products() as products:
            stage(x).square().sum().backward()
        counts.append(products.count)
        plain(x).square().sum().backward()
        assert differences(model, plain, set()) == []
    assert counts[0] - counts[1] == 4


def test_between_forward_and_backward_a_stage_holds_what_its_layers_read() -> None:
    x = torch.randint(0, 97, (4, 16))
    held = {}
    for recompute in (False, True):
        stage = whole(GPT(), x, recompute=recompute)
        stage(x).sum().backward()  # the first forward looks at what changes
        with StorageLedger() as ledger:
            output = stage(x)
            held[recompute] = ledger.current_bytes
            del output
    assert held[True] < held[False] / 2, held


def test_a_recomputed_layer_that_the_model_lacks_is_refused() -> None:
    job = JOBS["mlp"]
    recording = record(mlp(), (job.draw(8)[0],))
    layout = Layout(
        bounds=(0, len(recording.graph.layers)),
        stage_ranks=(0,),
        schedule="1f1b",
        micro_batches=2,
        recompute=("no such layer",),
    )
    with pytest.raises(InputError, match="no such layer"):
        Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss, ranks=1)


def test_a_layer_that_is_not_repeatable_is_refused() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.runs = 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            x = self.linear(x)
            return x.sin().cos() if self.runs % 2 else x.sin()

    x = torch.randn(4, 8)
    recording = record(nn.Sequential(Moody(), nn.Linear(8, 8)), (x,), leaf=(Moody,))
    stage = split(recording.module, recording.graph, (0, len(recording.graph.layers)))[0].module
    recompute_layers(stage, {layer.name: layer.nodes for layer in recording.graph.layers})
    output = stage(x)
    with pytest.raises(InputError, match="cannot be recomputed"):
        output.sum().backward()
