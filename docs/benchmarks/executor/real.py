"""Time real training steps on two ranks beside torch.distributed.pipelining, and one stage beside plain eager.

Two processes of one thread each hold every system at once; one step of each is run in turn, in an order that
changes from round to round. A step lasts from the first rank's start to the last rank's end.

    python docs/benchmarks/executor/real.py --model gpt --rounds 15
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn import functional

import autopipe
from autopipe.documents.files import load, save
from autopipe.documents.plan import Plan

RANKS = 2
FOREIGN = "used by others"
FOREIGN_LIMIT = 0.08  # of the machine, in a round that counts


class Embedding(nn.Module):
    def __init__(self, words: int, width: int, context: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places.weight


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time_, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, time_, self.heads, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Residual(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.short = nn.Conv2d(inputs, channels, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


def gpt() -> nn.Sequential:
    """8 blocks of width 256 and a head of 32,768 words."""
    blocks = [Block(256, 4) for _ in range(8)]
    return nn.Sequential(Embedding(32768, 256, 64), *blocks, nn.LayerNorm(256), nn.Linear(256, 32768, bias=False))


def cnn() -> nn.Sequential:
    """A wide-resnet: few blocks on large pictures, many on small ones."""
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    early = [Residual(32, 32, 1), Residual(32, 32, 1), Residual(32, 32, 1)]
    late = [Residual(32, 64, 2), Residual(64, 64, 1), Residual(64, 128, 2), *(Residual(128, 128, 1) for _ in range(2))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(stem, *early, *late, head)


def draw(model: str, batch: int) -> tuple[Tensor, Tensor]:
    if model == "gpt":
        ids = torch.randint(0, 32768, (batch, 65))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return torch.randn(batch, 3, 48, 48), torch.randint(0, 10, (batch,))


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


MODELS = {"gpt": gpt, "cnn": cnn}


def build(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    return MODELS[name]()


def interleaved(plan: Plan, cuts: tuple[int, ...]) -> Plan:
    """Return the plan with two stages a rank."""
    import msgspec

    ends = (*cuts, plan.stages[-1].end)
    first = plan.stages[0]
    stages = tuple(
        msgspec.structs.replace(first, begin=begin, end=end, rank=index % RANKS)
        for index, (begin, end) in enumerate(zip((0, *cuts), ends, strict=True))
    )
    return msgspec.structs.replace(plan, stages=stages, schedule="interleaved", virtual_stages=2, depth=0)


def even(layers: int, parts: int) -> tuple[int, ...]:
    """Return the cuts of ``parts`` runs of equally many layers."""
    return tuple(round(layers * part / parts) for part in range(1, parts))


def torch_schedule(stages: list[nn.Module], rank: int, micro_batches: int) -> Any:
    """Return a function that runs a step of these stages in torch.distributed.pipelining."""
    held = {index: stage for index, stage in enumerate(stages) if index % RANKS == rank}
    wrapped = [PipelineStage(stage, index, len(stages), torch.device("cpu")) for index, stage in held.items()]
    schedule: Any = (
        Schedule1F1B(wrapped[0], micro_batches, loss_fn=loss_fn)
        if len(stages) == RANKS
        else ScheduleInterleaved1F1B(wrapped, micro_batches, loss_fn=loss_fn)
    )

    def step(x: Tensor, y: Tensor) -> None:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": y} if rank == RANKS - 1 else {}))
        for stage in held.values():
            stage.zero_grad()

    return step


def ours(model: nn.Module, plan: Plan) -> Any:
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=loss_fn)
    parameters = list(pipe.parameters())

    replicas = plan.data_parallel_size

    def step(x: Tensor, y: Tensor) -> None:
        pipe.step(x.chunk(replicas)[pipe.replica], target=y.chunk(replicas)[pipe.replica])
        for parameter in parameters:
            parameter.grad = None

    return step


def run(rank: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    plan = load(f"{folder}/plan.json", Plan)
    same = load(f"{folder}/same.json", Plan)
    virtual = load(f"{folder}/virtual.json", Plan)
    model = build(options.model)
    count = len(model)
    halves = [model[: count // 2], model[count // 2 :]]
    systems = {
        "torch, equal count": torch_schedule(halves, rank, options.micro_batches),
        "autopipe, its plan": ours(build(options.model), plan),
        "torch 1F1B, same plan": torch_schedule(
            list(autopipe.split(build(options.model), same)), rank, same.micro_batches
        ),
        "autopipe 1F1B, same plan": ours(build(options.model), same),
        "torch interleaved": torch_schedule(
            list(autopipe.split(build(options.model), virtual)), rank, virtual.micro_batches
        ),
        "autopipe interleaved": ours(build(options.model), virtual),
    }
    x, y = draw(options.model, options.batch)
    rows: list[dict[str, float]] = []
    kept, deadline = 0, time.monotonic() + options.limit_s
    while kept < options.rounds and agreed(float(time.monotonic() < deadline)):
        row: dict[str, float] = {}
        before = processor_seconds()
        for name in list(systems)[:: 1 if len(rows) % 2 else -1]:
            dist.barrier()
            stamps = torch.tensor([-time.monotonic(), 0.0], dtype=torch.float64)
            systems[name](x, y)
            stamps[1] = time.monotonic()
            dist.all_reduce(stamps, op=dist.ReduceOp.MAX)
            row[name] = float(stamps.sum())
        busy, own, whole = processor_seconds() - before
        dist.all_reduce(own)
        row[FOREIGN] = agreed(float((busy - own) / whole))
        kept += bool(rows) and row[FOREIGN] <= FOREIGN_LIMIT
        rows.append(row)
    if rank == 0:
        report(rows[1:])
    dist.destroy_process_group()


def agreed(number: float) -> float:
    """Return the first rank's number on every rank."""
    told = torch.tensor(number, dtype=torch.float64)
    dist.broadcast(told, src=0)
    return float(told)


def processor_seconds() -> Tensor:
    """Return seconds of the machine's processors in use, of this process, and in all."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    return torch.tensor([(sum(fields) - fields[3] - fields[4]) / ticks, time.process_time(), sum(fields) / ticks])


def report(rows: list[dict[str, float]]) -> None:
    quiet = [row for row in rows if row[FOREIGN] <= FOREIGN_LIMIT]
    loads = sorted(row[FOREIGN] for row in rows)
    print(f"{len(quiet)} of {len(rows)} rounds were quiet: programs beside the ranks used at most {FOREIGN_LIMIT:.0%}")
    print(f"programs beside the ranks used {loads[0]:.0%} to {loads[-1]:.0%}, median {statistics.median(loads):.0%}")
    if not quiet:
        print("NO ROUND WAS QUIET: what follows is of all rounds and settles nothing")
    rows = quiet or rows
    for name in (name for name in rows[0] if name != FOREIGN):
        times = sorted(row[name] * 1000 for row in rows)
        print(f"{name:28s} median {statistics.median(times):7.1f} ms   ({times[0]:.1f} to {times[-1]:.1f})")
    for theirs, mine in (
        ("torch, equal count", "autopipe, its plan"),
        ("torch 1F1B, same plan", "autopipe 1F1B, same plan"),
        ("torch interleaved", "autopipe interleaved"),
    ):
        ratios = sorted(row[theirs] / row[mine] for row in rows)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        print(f"{mine}: {statistics.median(ratios):.3f}x of {theirs}; quartiles {low:.3f}, {high:.3f}")


def one_stage(rounds: int) -> None:
    """Compare one stage without communication with plain eager, at layers of about 1 ms."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    x, y = torch.randn(2, 256, 512)
    graph_plan = autopipe.partition(
        autopipe.profile(model, (x,), target=y, loss_fn=functional.mse_loss, micro_batches=(64,), budget_s=5),
        gpus=1, batch_size=256, micro_batch_size=64,
    )  # fmt: skip
    pipe = autopipe.pipeline(model, plan=graph_plan, loss_fn=functional.mse_loss, ranks=1)
    rows: list[dict[str, tuple[float, float]]] = []
    for turn in range(rounds + 1):
        row: dict[str, tuple[float, float]] = {}
        for name in ("plain", "autopipe")[:: 1 if turn % 2 else -1]:
            model.zero_grad()
            start, worked = time.perf_counter(), time.process_time()
            if name == "autopipe":
                pipe.step(x, target=y)
            else:
                total: Any = 0
                for inputs, wanted in zip(x.split(64), y.split(64), strict=True):
                    loss = functional.mse_loss(model(inputs), wanted) * 0.25
                    loss.backward()
                    total = total + loss.detach()
            row[name] = (time.perf_counter() - start, time.process_time() - worked)
        rows.append(row)
    for index, clock in enumerate(("wall", "processor")):
        ratios = sorted(row["autopipe"][index] / row["plain"][index] for row in rows[1:])
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        plain = statistics.median(row["plain"][index] for row in rows[1:])
        print(
            f"one stage, {clock} time: {statistics.median(ratios):.3f}x plain eager (quartiles {low:.3f}, {high:.3f}), "
            f"layers of {plain * 1000 / 32:.2f} ms a micro-batch"
        )
    pipe.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "one-stage"], default="gpt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit-s", type=float, default=150, help="of all rounds; noisy ones do not count as rounds")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=8, help="of torch; autopipe plans its own")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model == "one-stage":
        one_stage(options.rounds)
        return
    model = build(options.model)
    x, y = draw(options.model, options.batch)
    sizes = (1, 2, 4)
    profile = autopipe.profile(model, (x[:4],), target=y[:4], loss_fn=loss_fn, micro_batches=sizes, budget_s=15)
    plan = autopipe.partition(profile, gpus=RANKS, batch_size=options.batch)
    size = options.batch // options.micro_batches
    same = autopipe.partition(
        profile, gpus=RANKS, batch_size=options.batch, micro_batch_size=size, schedule="1f1b", stages=RANKS
    )
    with tempfile.TemporaryDirectory() as folder:
        save(plan, Path(folder) / "plan.json")
        save(same, Path(folder) / "same.json")
        save(interleaved(same, even(same.stages[-1].end, 4)), Path(folder) / "virtual.json")
        for what, one in (("its plan", plan), ("same plan", same)):
            where = [(stage.end, stage.rank) for stage in one.stages]
            kind = f"p={one.pipeline_size} d={one.data_parallel_size} {one.schedule} m={one.micro_batches}"
            print(f"{what}: {kind}, ends of stages and their ranks {where}", flush=True)
        mp.spawn(run, (options, folder), nprocs=RANKS)


if __name__ == "__main__":
    main()
