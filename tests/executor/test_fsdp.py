"""Stages sharded over their replicas by torch's fully_shard train like the plain model."""

import copy
import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from autopipe.executor.deadlines import Deadlines
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.sampler import replica_sizes
from autopipe.recorder import record
from tests.models import JOBS
from tests.processes import ProcessPool
from tests.reference import even_bounds


def sharded(rank: int, schedule: str) -> list[str]:
    job = JOBS["mlp"]
    torch.manual_seed(0)
    model = job.build()
    plain = copy.deepcopy(model)
    recording = record(model, (job.draw(8)[0],))
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), 2),
        stage_ranks=(0, 1),
        schedule=schedule,
        micro_batches=4,
        replicas=2,
    )
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss)
    for module in pipe.modules():
        fully_shard(module, mesh=pipe.mesh["dp"])
    optimizers = [
        torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True) for ps in (pipe.parameters(), plain.parameters())
    ]
    torch.manual_seed(1)
    wrong = []
    for _ in range(3):
        x, y = job.draw(16)
        mine = [tensor.split(replica_sizes(16, 2))[pipe.replica] for tensor in (x, y)]
        loss = pipe.step(mine[0], target=mine[1])
        wanted = job.loss(plain(x), y)
        wanted.backward()
        if not torch.allclose(loss, wanted, rtol=1e-6):
            wrong.append(f"loss {loss} against {wanted}")
        norm = pipe.clip_grad_norm_(0.1)
        if not torch.allclose(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.1), rtol=1e-5):
            wrong.append("norm")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    theirs = dict(plain.named_parameters())
    for name, parameter in pipe.named_parameters():
        assert parameter.to_local().numel() < theirs[name].numel()
        if not torch.allclose(parameter.full_tensor(), theirs[name], rtol=1e-6, atol=1e-6):
            wrong.append(name)
    state = pipe.full_state_dict()
    wrong += [name for name in theirs if not torch.allclose(state[name], theirs[name], rtol=1e-6, atol=1e-6)]
    pipe.load_state_dict({name: tensor + 1 for name, tensor in state.items()})
    wrong += [name for name, p in pipe.named_parameters() if not torch.equal(p.full_tensor(), state[name] + 1)]
    return wrong


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_sharded_stages_train_like_the_plain_model(processes: ProcessPool, schedule: str) -> None:
    assert processes.run(sharded, 4, schedule) == [[]] * 4


class Spoilt(nn.Module):
    """Raises in its third micro-batch of the second step, on one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.left: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise ValueError("a spoilt micro-batch")
        return self.linear(x)


def failing(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 4), rank=rank, world_size=4)
    torch.set_num_threads(1)
    model = nn.Sequential(Spoilt(), nn.Linear(8, 8))
    torch.manual_seed(0)
    x = torch.randn(8, 8)
    recording = record(model, (x,), leaf=(Spoilt,))
    layout = Layout(bounds=(0, 1, 2), stage_ranks=(0, 1), schedule="1f1b", micro_batches=4, replicas=2)
    pipe = Pipeline(
        recording.module,
        recording.graph,
        layout,
        loss_fn=nn.functional.mse_loss,
        deadlines=Deadlines.chosen(1000.0),
    )
    for module in pipe.modules():
        fully_shard(module, mesh=pipe.mesh["dp"])
    pipe.step(x, target=x)
    if rank == 1:
        model[0].left = 2
    try:
        pipe.step(x, target=x)
    except Exception as error:
        # The watchdog may end this process at any moment: only a whole file has its name.
        (folder / f"{rank}.part").write_text(str(error), encoding="utf-8")
        (folder / f"{rank}.part").rename(folder / f"{rank}.txt")


def test_no_rank_waits_for_the_shards_of_one_that_failed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=failing, args=(rank, tmp_path), daemon=True) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60.0)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    assert None not in codes
    # Ranks that torch cannot wake are ended, with the sentence in their own output.
    told = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.txt")]
    assert len(told) > 1
    assert [sentence for sentence in told if "a spoilt micro-batch" not in sentence] == []
