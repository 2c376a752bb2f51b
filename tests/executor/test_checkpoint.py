"""What a pipeline saves, any other one goes on from: its next steps are those of the pipeline that was not stopped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autopipe
from autopipe.executor.build import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.named import make
from tests.models import JOBS, Job
from tests.processes import ProcessPool
from tests.reference import even_bounds, plain_step

BATCH, MICRO_BATCHES = 8, 4


class Dropping(nn.Module):
    """A network with dropout and BatchNorm whose first layers are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(self._piece() for _ in range(4)))
        self.body[0].requires_grad_(False)
        self.unread = nn.Linear(3, 3)

    def _piece(self) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


WAYS = {
    **JOBS,
    "dropping": Job(Dropping, lambda batch: (torch.randn(batch, 16), torch.randn(batch, 16)), functional.mse_loss),
}


class Loop:
    """A user's loop over one pipeline: optimizer with two groups, scheduler, batches from torch's generator."""

    def __init__(
        self,
        name: str,
        *,
        ranks: int,
        schedule: str = "1f1b",
        virtual: int = 1,
        replicas: int = 1,
        seed: int = 0,
        optimizer: Any = torch.optim.AdamW,
    ) -> None:
        self.job = WAYS[name]
        torch.manual_seed(seed)
        self.model = self.job.build()
        recording = record(self.model, (self.job.draw(BATCH)[0],))
        layout = Layout(
            bounds=even_bounds(len(recording.graph.layers), ranks * virtual),
            stage_ranks=make(schedule, stages=ranks, micro_batches=1, virtual=virtual).stage_ranks,
            schedule=schedule,
            micro_batches=MICRO_BATCHES // replicas,
            virtual_stages=virtual,
            replicas=replicas,
        )
        threads = None if torch.distributed.is_initialized() else ranks * replicas
        self.pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=self.job.loss, ranks=threads)
        named = dict(self.pipe.named_parameters())
        groups = [
            {"params": [p for p in named.values() if p.ndim > 1], "lr": 0.01},
            {"params": [p for p in named.values() if p.ndim < 2]},
        ]
        self.optimizer = optimizer(groups, lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], gamma=0.5)

    def step(self) -> float:
        x, y = self.job.draw(BATCH)
        if self.pipe.mesh is not None:
            x, y = (tensor.chunk(self.pipe.layout.replicas)[self.pipe.replica] for tensor in (x, y))
        loss = self.pipe.step(x, target=y)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item()

    def run(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]

    def save(self, folder: Any, **options: Any) -> Any:
        return self.pipe.save(folder, optimizer=self.optimizer, scheduler=self.scheduler, **options)

    def load(self, folder: Any, **options: Any) -> Any:
        return self.pipe.load(folder, optimizer=self.optimizer, scheduler=self.scheduler, **options)

    def moments(self) -> dict[str, Tensor]:
        """Return every tensor of the optimizer's state, by the parameter's name."""
        names = {parameter: name for name, parameter in self.pipe.named_parameters()}
        return {
            f"{names[p]}.{key}": value.detach().clone()
            for p, state in self.optimizer.state.items()
            for key, value in state.items()
        }


@pytest.fixture
def loop() -> Iterator[Any]:
    made: list[Loop] = []

    def build(*args: Any, **kwargs: Any) -> Loop:
        made.append(Loop(*args, **kwargs))
        return made[-1]

    yield build
    for one in made:
        one.pipe.close()


OTHERS = (
    {"ranks": 2},
    {"ranks": 3},
    {"ranks": 2, "schedule": "interleaved", "virtual": 2},
    {"ranks": 2, "replicas": 2},
)


@pytest.mark.parametrize("name", WAYS)
def test_saved_on_four_threads_the_next_steps_are_the_same_on_any_other_split(
    name: str, loop: Any, tmp_path: Path
) -> None:
    first = loop(name, ranks=4)
    first.run(3)
    first.save(tmp_path)
    moments = first.moments()
    losses = first.run(3)
    for number, other in enumerate(OTHERS):
        second = loop(name, seed=7 + number, **other)
        restored = second.load(tmp_path)
        assert restored.step == 3
        loaded = second.moments()
        assert loaded.keys() == moments.keys()
        assert [key for key in moments if not torch.equal(loaded[key], moments[key])] == []
        assert second.scheduler.get_last_lr() == [0.005, 0.01]
        if other.get("replicas"):
            # Each replica normalises, and draws, for its own samples.
            if name in ("mlp", "gpt", "unet"):
                assert second.run(3) == pytest.approx(losses, rel=1e-5)
        else:
            assert second.run(3) == pytest.approx(losses, rel=1e-6 if name in ("gpt", "unet") else 0.0)


def plain_run(job: Job, model: nn.Module, optimizer: Any, scheduler: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        x, y = job.draw(BATCH)
        losses.append(plain_step(model, job.loss, (x,), y, MICRO_BATCHES).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("name", JOBS)
def test_the_plain_model_goes_on_where_the_pipeline_stopped(name: str, loop: Any, tmp_path: Path) -> None:
    first = loop(name, ranks=4)
    first.run(3)
    first.save(tmp_path)
    drawing = torch.get_rng_state()
    losses = first.run(3)
    torch.manual_seed(9)
    model = first.job.build()
    groups = [[p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim < 2]]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=0.5)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
    document = autopipe.load_checkpoint(tmp_path, model, optimizer=optimizer, scheduler=scheduler)
    assert document.step == 3
    torch.set_rng_state(drawing)
    assert plain_run(first.job, model, optimizer, scheduler, 3) == pytest.approx(
        losses, rel=1e-6 if name == "gpt" else 0.0
    )


def process_run(rank: int, name: str, options: dict[str, Any], folder: str, saves: bool) -> Any:
    one = Loop(name, seed=rank if not saves else 0, **options)
    torch.manual_seed(5)
    if saves:
        one.run(3)
        one.save(folder, in_background=True).wait()
    else:
        one.load(folder)
    return one.moments(), one.run(3)


@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_saved_by_four_processes_the_next_steps_are_the_same_on_other_processes(
    name: str, processes: ProcessPool, tmp_path: Path
) -> None:
    outcomes = processes.run(process_run, 4, name, {"ranks": 4}, str(tmp_path), True)
    losses = outcomes[0][1]
    moments = {key: value for part, _ in outcomes for key, value in part.items()}
    interleaved = {"ranks": 2, "schedule": "interleaved", "virtual": 2}
    replicated = {"ranks": 2, "replicas": 2}
    for ranks, options in ((2, {"ranks": 2}), (3, {"ranks": 3}), (2, interleaved), (4, replicated)):
        found = processes.run(process_run, ranks, name, options, str(tmp_path), False)
        loaded = {key: value for part, _ in found for key, value in part.items()}
        assert loaded.keys() == moments.keys()
        assert [key for key in moments if not torch.equal(loaded[key], moments[key])] == []
        if name == "gpt" or ranks < 4:
            assert found[0][1] == pytest.approx(losses, rel=1e-6 if name == "gpt" else 0.0)
