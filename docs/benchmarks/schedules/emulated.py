"""Compare the executor with torch.distributed.pipelining on emulated devices: stages that sleep.

Every rank sleeps 10 ms for each of F, I and W (its virtual stages share them) and passes real 64 KiB tensors
over gloo, so that two cores can run eight ranks. Both systems run in the same processes, one step of each in
turn. A step lasts from the first rank's start to the last rank's end, on the machine's monotonic clock.

    python docs/benchmarks/schedules/emulated.py --ranks 4 --micro-batches 8 --pairs 15
"""

import argparse
import contextlib
import ctypes
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

from autopipe.executor.runtime import Runtime
from autopipe.executor.seeds import Seeds
from autopipe.schedules.comms import chain
from autopipe.schedules.forward_only import forward_only
from autopipe.schedules.named import make
from autopipe.simulator.quick import quick
from autopipe.stages.boundary import Route
from autopipe.stages.split import Stage
from autopipe.transport.distributed import DistributedEndpoint

PART_S = 0.010  # each of F, I and W of a rank's whole share; B takes I and W together
FLOATS = 16384  # 64 KiB in float32
FOREIGN_LIMIT = 0.08  # a pair is dropped when other processes used more than this share of the machine, no other way
PR_SET_TIMERSLACK = 29  # Linux lets a sleeping thread wake 50 us late unless told otherwise
SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-v": ScheduleZBVZeroBubble,
}
VIRTUAL = {"interleaved": 2, "zb-v": 2}


class _Forward(torch.autograd.Function):
    """Sleeps for F, and for I in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x + 0.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient + 0.0, None


class _Weight(torch.autograd.Function):
    """Sleeps for W in its backward."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return weight + 0.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient + 0.0, None


class Device(nn.Module):
    """A stage that sleeps, and counts how many of its outputs are alive."""

    def __init__(self, seconds: float, *, is_last: bool, in_tuple: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seconds = seconds
        self.is_last = is_last
        self.in_tuple = in_tuple
        self.live: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.peak_live = 0

    def forward(self, x: Tensor) -> Any:
        y = _Forward.apply(x, self.seconds) + _Weight.apply(self.weight, self.seconds)
        if not self.is_last:
            self.live.add(y)
            self.peak_live = max(self.peak_live, len(self.live))
        return (y,) if self.in_tuple and not self.is_last else y


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def devices(name: str, rank: int, ranks: int, *, in_tuple: bool) -> dict[int, Device]:
    """Return this rank's stages under schedule ``name``, by index."""
    virtual = VIRTUAL.get(name, 1)
    placement = make(name, stages=ranks, micro_batches=1, virtual=virtual).stage_ranks
    last = len(placement) - 1
    return {
        stage: Device(PART_S / virtual, is_last=stage == last, in_tuple=in_tuple)
        for stage, owner in enumerate(placement)
        if owner == rank
    }


def ours(name: str, rank: int, ranks: int, micro_batches: int) -> tuple[dict[int, Device], Any, Any]:
    held = devices(name, rank, ranks, in_tuple=True)
    virtual = VIRTUAL.get(name, 1)
    placement = make(name, stages=ranks, micro_batches=1, virtual=virtual).stage_ranks
    count = len(placement)
    stages = [
        Stage(
            index=index,
            begin=index,
            end=index + 1,
            module=device,
            inputs=("x",),
            outputs=() if device.is_last else ("x",),
            is_last=device.is_last,
        )
        for index, device in held.items()
    ]
    hops = {(placement[s], placement[s + 1]) for s in range(count - 1)}
    pairs = {pair for a, b in hops if a != b for pair in ((a, b), (b, a))}
    runtime = Runtime(
        stages=stages,
        stage_ranks=placement,
        routes=tuple(Route(source=s, target=s + 1, names=("x",)) for s in range(count - 1)),
        edges=chain(count),
        schedule=lambda m: make(name, stages=ranks, micro_batches=m, virtual=virtual),
        forward_schedule=lambda m: forward_only(placement, m),
        micro_batches=micro_batches,
        endpoint=DistributedEndpoint(torch.device("cpu"), pairs),
        loss_fn=loss,
        seeds=Seeds(torch.device("cpu"), contextlib.nullcontext()),
    )

    def step(x: Tensor, y: Tensor) -> None:
        runtime.step((x,), {}, target=y, scale=1.0, training=True, context=torch.enable_grad)

    return held, step, lambda: runtime.timeline().peak_receive_buffers


def theirs(name: str, rank: int, ranks: int, micro_batches: int) -> tuple[dict[int, Device], Any, Any]:
    held = devices(name, rank, ranks, in_tuple=False)
    count = ranks * VIRTUAL.get(name, 1)
    stages = [PipelineStage(device, index, count, torch.device("cpu")) for index, device in held.items()]
    given = stages if name in VIRTUAL else stages[0]
    schedule = SCHEDULES[name](given, micro_batches, loss_fn=loss)  # type: ignore[abstract]

    def step(x: Tensor, y: Tensor) -> None:
        schedule.step(*((x,) if 0 in held else ()), **({"target": y} if count - 1 in held else {}))

    def buffers() -> int:
        infos = [row for stage in stages for row in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())]
        return sum(isinstance(getattr(info, "buffer", None), Tensor) for row in infos for info in row)

    return held, step, buffers


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
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
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
        counts = {
            system: (sum(device.peak_live for device in held.values()), buffers())
            for system, (held, _, buffers) in systems.items()
        }
        dist.all_gather_object(everyone, counts)
        if rank == 0:
            result = {"schedule": name, "rows": rows[1:], "counts": everyone}
            (Path(folder) / f"{name}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def summary(result: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return medians over the kept pairs; the ideal is the schedule's own step with free links."""
    kept = (
        [row for row in result["rows"] if row["foreign"] <= FOREIGN_LIMIT] if not options.keep_all else result["rows"]
    )
    virtual = VIRTUAL.get(result["schedule"], 1)
    schedule = make(result["schedule"], stages=options.ranks, micro_batches=options.micro_batches, virtual=virtual)
    answer = quick(schedule, [(1000 * PART_S / virtual,) * 3])
    ideal = answer.step_ms / 1000
    medians = {s: statistics.median(row[s] for row in kept) for s in ("torch", "autopipe")} if kept else {}
    return {
        "schedule": result["schedule"],
        "ranks": options.ranks,
        "micro_batches": options.micro_batches,
        "pairs": len(result["rows"]),
        "kept": len(kept),
        "ratio": statistics.median(row["autopipe"] / row["torch"] for row in kept) if kept else None,
        "step_over_ideal": {system: value / ideal for system, value in medians.items()},
        "utilisation": {system: answer.utilisation * ideal / value for system, value in medians.items()},
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
