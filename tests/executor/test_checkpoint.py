"""What a pipeline saves, any other one goes on from: its next steps are those of the pipeline that was not stopped."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import autopipe
from autopipe.checkpoints.saved import Saved
from autopipe.errors import DocumentError, InputError, MismatchError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.sharded import whole
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
        sharded: bool = False,
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
        for module in self.pipe.modules() if sharded else ():
            fully_shard(module, mesh=self.pipe.mesh["dp"])
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
            f"{names[p]}.{key}": whole(value.detach()).clone()
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


def test_sharded_stages_are_saved_and_loaded_in_parts(processes: ProcessPool, tmp_path: Path) -> None:
    sharded = {"ranks": 2, "replicas": 2, "sharded": True}
    outcomes = processes.run(process_run, 4, "mlp", sharded, str(tmp_path), True)
    moments = {key: value for part, _ in outcomes for key, value in part.items()}
    for ranks, options in ((4, sharded), (2, {"ranks": 2})):
        found = processes.run(process_run, ranks, "mlp", options, str(tmp_path), False)
        loaded = {key: value for part, _ in found for key, value in part.items()}
        assert loaded.keys() == moments.keys()
        assert [key for key in moments if not torch.equal(loaded[key], moments[key])] == []
        assert found[0][1] == pytest.approx(outcomes[0][1], rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_tied_weight_stays_one(ranks: int, loop: Any, tmp_path: Path) -> None:
    first = loop("gpt", ranks=ranks)
    first.run(5)
    path = first.save(tmp_path).wait()
    assert "head.weight" not in Saved(path).names
    wanted, losses = first.pipe.full_state_dict(), first.run(1)
    for other in (1, 3):
        second = loop("gpt", ranks=other, seed=8)
        second.load(path)
        found = second.pipe.full_state_dict()
        assert found.keys() == wanted.keys()
        assert [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)] == []
        assert torch.equal(found["head.weight"], found["tokens.weight"])
        assert second.run(1) == pytest.approx(losses, rel=1e-6)


def test_a_save_in_the_background_holds_the_moment_of_the_call(loop: Any, tmp_path: Path) -> None:
    first = loop("mlp", ranks=2)
    for number in range(3):
        first.run(1)
        moments = first.moments()
        saving = first.save(tmp_path, data={"epoch": number, "at": [1, 2]}, keep=2, in_background=True)
        first.run(1)
    assert saving.wait().name == "step-00000005"
    assert saving.done()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000005"]
    second = loop("mlp", ranks=3, seed=4)
    assert second.load(tmp_path).data == {"epoch": 2, "at": [1, 2]}
    assert all(torch.equal(value, moments[key]) for key, value in second.moments().items())
    assert second.pipe.steps == 5


class Reader:
    """Data with a position."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_scaler_and_loader_go_on_too(loop: Any, tmp_path: Path) -> None:
    first = loop("mlp", ranks=2)
    reader, scaler = Reader(), autopipe.GradScaler(first.pipe, init_scale=512.0)
    reader.position = 17
    first.run(1)
    first.save(tmp_path, scaler=scaler, data=reader, step=40)
    second = loop("mlp", ranks=2)
    other, fresh = Reader(), autopipe.GradScaler(second.pipe)
    assert second.load(tmp_path, scaler=fresh, data=other).step == 40
    assert (other.position, fresh.get_scale()) == (17, 512.0)


def no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.filterwarnings("ignore:rank 0 could not write")
def test_a_write_that_fails_leaves_the_checkpoint_before_and_training_goes_on(
    loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loop("mlp", ranks=2)
    first.run(1)
    first.save(tmp_path)
    first.run(1)
    with monkeypatch.context() as patch:
        patch.setattr("autopipe.checkpoints.tensors._Writer.finish", no_space)
        failure = r"No space left on device.*those before it are as they were"
        with pytest.raises(DocumentError, match=failure):
            first.save(tmp_path)
        with pytest.warns(UserWarning, match=failure), pytest.raises(DocumentError, match=failure):
            first.save(tmp_path, in_background=True).wait()
        first.save(tmp_path, in_background=True)
        with pytest.raises(DocumentError, match=failure):
            first.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    first.run(1)
    first.save(tmp_path)
    assert loop("mlp", ranks=2).load(tmp_path).step == 3


def unwritable(rank: int, folder: str) -> list[str]:
    one = Loop("mlp", ranks=2)
    one.run(1)
    one.save(folder)
    one.run(1)
    said = []
    try:
        one.save(folder, step=2 + rank)
    except InputError as error:
        said.append(str(error))
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr("autopipe.checkpoints.tensors._Writer.write_data", no_space)
        try:
            one.save(folder)
        except DocumentError as error:
            said.append(str(error))
    assert one.run(1)
    return said


def test_what_one_rank_cannot_save_is_raised_on_all(processes: ProcessPool, tmp_path: Path) -> None:
    for steps, space in processes.run(unwritable, 2, str(tmp_path)):
        assert "different steps ([2, 3])" in steps
        assert "rank 1 could not write" in space
        assert "No space left" in space
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_another_model_or_optimizer_is_refused_before_anything_changes(loop: Any, tmp_path: Path) -> None:
    first = loop("mlp", ranks=2)
    first.run(1)
    first.save(tmp_path)
    other = loop("cnn", ranks=2, seed=3)
    before = copy.deepcopy(other.pipe.full_state_dict())
    with pytest.raises(MismatchError, match="which the model lacks"):
        other.load(tmp_path)
    sgd = loop("mlp", ranks=2, seed=3, optimizer=torch.optim.SGD)
    weights = copy.deepcopy(sgd.pipe.full_state_dict())
    with pytest.raises(MismatchError, match="saved with the optimizer AdamW and this is SGD"):
        sgd.load(tmp_path)
    for pipe, wanted in ((other.pipe, before), (sgd.pipe, weights)):
        assert all(torch.equal(value, wanted[name]) for name, value in pipe.full_state_dict().items())
    with pytest.raises(DocumentError, match="saved without a scaler"):
        sgd.pipe.load(tmp_path, scaler=autopipe.GradScaler(sgd.pipe))
    assert sgd.pipe.load(tmp_path / "empty", required=False) is None


def test_code_is_not_saved(loop: Any, tmp_path: Path) -> None:
    first = loop("mlp", ranks=2)
    with pytest.raises(InputError, match="data holds more than numbers"):
        first.save(tmp_path, data=Path())
    with pytest.raises(InputError, match=r"holds a parameter of shape \(2,\)"):
        first.pipe.save(tmp_path, optimizer=torch.optim.SGD([nn.Parameter(torch.ones(2))]))
    with pytest.raises(InputError, match="keep=0"):
        first.save(tmp_path, keep=0)
    assert not list(tmp_path.iterdir())
