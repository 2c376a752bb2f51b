"""Compare the executor with torch.distributed.pipelining on emulated devices: stages that sleep.

Every stage sleeps 10 ms in its forward and 20 ms in its backward and passes real 64 KiB tensors over gloo,
so that two cores can run eight ranks. Both systems run in the same processes, one step of each in turn. A step lasts
from the first rank's start to the last rank's end, on the machine's monotonic clock.

    python docs/benchmarks/executor/emulated.py --ranks 4 --micro-batches 8 --pairs 15
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from autopipe.executor.runtime import Runtime
from autopipe.schedules.comms import chain
from autopipe.schedules.forward_only import forward_only
from autopipe.schedules.named import make
from autopipe.stages.boundary import Route
from autopipe.stages.split import Stage
from autopipe.transport.distributed import DistributedEndpoint

FORWARD_S = 0.010
BACKWARD_S = 0.020
FLOATS = 16384  # 64 KiB in float32
FOREIGN_LIMIT = 0.08  # a pair is dropped when other processes used more than this share of the machine, no other way
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return x + 0.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(BACKWARD_S)
        return gradient + 0.0


class Device(nn.Module):
    """A stage that sleeps, and counts how many of its outputs are alive."""

    def __init__(self, is_last: bool, in_tuple: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.is_last = is_last
        self.in_tuple = in_tuple
        self.live: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.peak_live = 0

    def forward(self, x: Tensor) -> Any:
        # The parameter makes the first stage's output need a gradient, as a real stage's does.
        y = _Sleep.apply(x + self.weight)
        if not self.is_last:
            self.live.add(y)
            self.peak_live = max(self.peak_live, len(self.live))
        return (y,) if self.in_tuple and not self.is_last else y


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def ours(name: str, rank: int, ranks: int, micro_batches: int) -> tuple[Device, Any, Any]:
    is_last = rank == ranks - 1
    device = Device(is_last, True)
    outputs = () if is_last else ("x",)
    stage = Stage(index=rank, begin=rank, end=rank + 1, module=device, inputs=("x",), outputs=outputs, is_last=is_last)
    routes = tuple(Route(source=s, target=s + 1, names=("x",)) for s in range(ranks - 1))
    pairs = [pair for s in range(ranks - 1) for pair in ((s, s + 1), (s + 1, s))]
    runtime = Runtime(
        stages=[stage],
        stage_ranks=range(ranks),
        routes=routes,
        edges=chain(ranks),
        schedule=lambda m: make(name, stages=ranks, micro_batches=m),
        forward_schedule=lambda m: forward_only(range(ranks), m),
        micro_batches=micro_batches,
        endpoint=DistributedEndpoint(torch.device("cpu"), pairs),
        loss_fn=loss,
    )

    def step(x: Tensor, y: Tensor) -> None:
        runtime.step((x,), {}, target=y, scale=1.0, training=True, context=torch.enable_grad)

    return device, step, lambda: runtime.timeline().peak_receive_buffers


def theirs(name: str, rank: int, ranks: int, micro_batches: int) -> tuple[Device, Any, Any]:
    device = Device(rank == ranks - 1, False)
    stage = PipelineStage(device, rank, ranks, torch.device("cpu"))
    schedule = SCHEDULES[name](stage, micro_batches, loss_fn=loss)

    def step(x: Tensor, y: Tensor) -> None:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": y} if rank == ranks - 1 else {}))

    def buffers() -> int:
        infos = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
        return sum(isinstance(getattr(info, "buffer", None), Tensor) for row in infos for info in row)

    return device, step, buffers


def cpu_seconds() -> Tensor:
    """Return (busy, total) seconds of the machine's processors and the seconds used by this process."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    return torch.tensor([(sum(fields) - fields[3] - fields[4]) / ticks, sum(fields) / ticks, time.process_time()])


def foreign_share(before: Tensor, after: Tensor) -> float:
    """Return the share of the machine used by others than the ranks, which all call this."""
    busy, total, own = after - before
    dist.all_reduce(own)
    return max(0.0, float((busy - own) / total))


def run(rank: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    ranks, micro_batches = options.ranks, options.micro_batches
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    x, y = torch.randn(2, micro_batches, FLOATS)
    for name in options.schedules.split(","):
        systems = {
            "torch": theirs(name, rank, ranks, micro_batches),
            "autopipe": ours(name, rank, ranks, micro_batches),
        }
        rows = []
        for pair in range(options.pairs + 1):
            before = cpu_seconds()
            row: dict[str, float] = {}
            for system in ("torch", "autopipe") if pair % 2 else ("autopipe", "torch"):
                dist.barrier()
                stamps = torch.tensor([-time.monotonic(), 0.0], dtype=torch.float64)
                systems[system][1](x, y)
                stamps[1] = time.monotonic()
                dist.all_reduce(stamps, op=dist.ReduceOp.MAX)
                row[system] = float(stamps.sum())
            row["foreign"] = foreign_share(before, cpu_seconds())
            rows.append(row)
        everyone: list[Any] = [None] * ranks
        counts = {system: (device.peak_live, buffers()) for system, (device, _, buffers) in systems.items()}
        dist.all_gather_object(everyone, counts)
        if rank == 0:
            result = {"schedule": name, "rows": rows[1:], "counts": everyone}
            (Path(folder) / f"{name}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def summary(result: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return medians over the kept pairs; the ideal is (m + p - 1) * (F + B)."""
    kept = (
        [row for row in result["rows"] if row["foreign"] <= FOREIGN_LIMIT] if not options.keep_all else result["rows"]
    )
    ideal = (options.micro_batches + options.ranks - 1) * (FORWARD_S + BACKWARD_S)
    medians = {s: statistics.median(row[s] for row in kept) for s in ("torch", "autopipe")} if kept else {}
    return {
        "schedule": result["schedule"],
        "ranks": options.ranks,
        "micro_batches": options.micro_batches,
        "pairs": len(result["rows"]),
        "kept": len(kept),
        "ratio": statistics.median(row["autopipe"] / row["torch"] for row in kept) if kept else None,
        "step_over_ideal": {system: value / ideal for system, value in medians.items()},
        "live_outputs": {s: [counts[s][0] for counts in result["counts"]] for s in ("torch", "autopipe")},
        "receive_buffers": {s: [counts[s][1] for counts in result["counts"]] for s in ("torch", "autopipe")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--schedules", default="gpipe,1f1b")
    parser.add_argument("--keep-all", action="store_true", help="keep pairs measured under foreign load")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (options, folder), nprocs=options.ranks)
        for name in options.schedules.split(","):
            result = json.loads((Path(folder) / f"{name}.json").read_text())
            print(json.dumps(summary(result, options)))


if __name__ == "__main__":
    main()
