"""Compare the executor with torch.distributed.pipelining on emulated devices: stages that sleep.

Every rank sleeps for each of F, I and W (its virtual stages share them) and passes real 64 KiB tensors over
gloo, so that two cores can run eight ranks. Both systems run in the same processes, one step of each in
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.executor.ending import Ending
from autopipe.executor.request import Request
from autopipe.executor.runtime import Runtime
from autopipe.executor.seeds import Seeds
from autopipe.executor.shares import Reduction, Shares
from autopipe.hardware.cluster import Link
from autopipe.schedules.action import Schedule
from autopipe.schedules.comms import chain
from autopipe.schedules.forward_only import forward_only
from autopipe.schedules.named import FITTED, VIRTUAL, make, placement
from autopipe.simulator.conditions import Conditions
from autopipe.simulator.events import run as simulate_run
from autopipe.simulator.fit import fit
from autopipe.stages.boundary import Route
from autopipe.stages.split import Stage
from autopipe.transport.distributed import DistributedEndpoint

HOP_NS = 200_000  # about what a message takes here; a fitted schedule is told
FLOATS = 16384  # 64 KiB in float32
FOREIGN_LIMIT = 0.08  # a pair is dropped when other processes used more than this share of the machine, no other way
# What an action and a message cost the executor here beside the sleep, and how long a message takes: taken from
# another run (ZB-V on 4 ranks), so that predictions use nothing of the run that they are compared with.
MEASURED = Conditions(action_ns=170_000, message_ns=90_000)
MEASURED_HOP_NS = 160_000
PR_SET_TIMERSLACK = 29  # Linux lets a sleeping thread wake 50 us late unless told otherwise
SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-h1": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
}
SEVERAL_STAGES = ("interleaved", "zb-h1", "zb-v")  # those of torch that take a list of stages


class _Forward(torch.autograd.Function):
    """Sleeps for F, and for I in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float, backward_seconds: float) -> Tensor:
        ctx.seconds = backward_seconds
        time.sleep(seconds)
        return x + 0.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient + 0.0, None, None


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
    """A stage that sleeps, and counts how many of its outputs are alive.

    The first stage has a parameter at its entry, so that it too sleeps for I: what it feeds needs a gradient.
    """

    def __init__(self, seconds: tuple[float, float, float], *, is_first: bool, is_last: bool, in_tuple: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.entry = nn.Parameter(torch.zeros(())) if is_first else None
        self.seconds = seconds
        self.is_last = is_last
        self.in_tuple = in_tuple
        self.live: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.peak_live = 0

    def forward(self, x: Tensor) -> Any:
        forward, input_grad, weight_grad = self.seconds
        if self.entry is not None:
            x = x + self.entry
        y = _Forward.apply(x, forward, input_grad) + _Weight.apply(self.weight, weight_grad)
        if not self.is_last:
            self.live.add(y)
            self.peak_live = max(self.peak_live, len(self.live))
        return (y,) if self.in_tuple and not self.is_last else y


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def stage_seconds(name: str, options: argparse.Namespace) -> list[tuple[float, float, float]]:
    """Return F, I and W of every stage: the rank's share, which its virtual stages divide."""
    placement = placement_of(name, options)
    virtual = len(placement) // options.ranks
    rows = [tuple(float(part) for part in row.split(",")) for row in options.times.split(";")]
    by_rank = rows if len(rows) > 1 else rows * options.ranks
    return [tuple(part / 1000 / virtual for part in by_rank[rank]) for rank in placement]


def stage_costs(name: str, options: argparse.Namespace) -> list[StageCost]:
    """Return the same as costs; the first stage sends no gradient back, so its backward runs whole, as its W."""
    costs = []
    for stage, (forward, input_grad, weight_grad) in enumerate(stage_seconds(name, options)):
        parts = (input_grad, weight_grad) if stage else (0.0, input_grad + weight_grad)
        forward_ns, input_ns, weight_ns = (round(part * 1e9) for part in (forward, *parts))
        costs.append(
            StageCost(
                forward_ns=forward_ns,
                backward_ns=input_ns + weight_ns,
                input_grad_ns=input_ns,
                weight_grad_ns=weight_ns,
            )
        )
    return costs


def placement_of(name: str, options: argparse.Namespace) -> tuple[int, ...]:
    base, virtual = _parsed(name)
    if base == FITTED and virtual == 2:
        return placement("zb-v", ranks=options.ranks)
    return placement(base, ranks=options.ranks, virtual=virtual)


def schedule_of(name: str, options: argparse.Namespace, *, hop_ns: int = 0) -> Schedule:
    """Return the schedule; a fitted one holds at most ``--limit`` stage-micro-batches, and knows of the hop."""
    base, virtual = _parsed(name)
    if base != FITTED:
        return make(base, stages=options.ranks, micro_batches=options.micro_batches, virtual=virtual)
    stages = stage_costs(name, options)
    return fit(
        stages,
        edge_costs(len(stages), hop_ns),
        placement_of(name, options),
        options.micro_batches,
        limits=[options.limit or 2 * options.ranks] * options.ranks,
    )


def edge_costs(stages: int, hop_ns: int) -> list[EdgeCost]:
    return [EdgeCost(edge=edge, link=Link(latency_ns=hop_ns)) for edge in chain(stages)]


def _parsed(name: str) -> tuple[str, int]:
    """Return the schedule and the number of stages a rank that ``interleaved:4`` names."""
    base, _, virtual = name.partition(":")
    return base, int(virtual) if virtual else 2 if base in VIRTUAL else 1


def devices(name: str, rank: int, options: argparse.Namespace, *, in_tuple: bool) -> dict[int, Device]:
    """Return this rank's stages under schedule ``name``, by index."""
    seconds = stage_seconds(name, options)
    last = len(seconds) - 1
    return {
        stage: Device(seconds[stage], is_first=stage == 0, is_last=stage == last, in_tuple=in_tuple)
        for stage, owner in enumerate(placement_of(name, options))
        if owner == rank
    }


def ours(name: str, rank: int, options: argparse.Namespace) -> tuple[dict[int, Device], Any, Any]:
    """Return this rank's devices, a function that runs a step, and its runtime."""
    held = devices(name, rank, options, in_tuple=True)
    ranks_of = placement_of(name, options)
    count = len(ranks_of)
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
    hops = {(ranks_of[s], ranks_of[s + 1]) for s in range(count - 1)}
    pairs = {pair for a, b in hops if a != b for pair in ((a, b), (b, a))}
    endpoint = DistributedEndpoint(torch.device("cpu"), pairs)
    seeds = Seeds(torch.device("cpu"), contextlib.nullcontext())
    schedule = schedule_of(name, options, hop_ns=HOP_NS)
    runtime = Runtime(
        stages=stages,
        stage_ranks=ranks_of,
        routes=tuple(Route(source=s, target=s + 1, names=("x",)) for s in range(count - 1)),
        edges=chain(count),
        schedule=lambda _: schedule,
        forward_schedule=lambda m: forward_only(ranks_of, m),
        micro_batches=options.micro_batches,
        endpoint=endpoint,
        ending=Ending(endpoint, loss, Shares(Reduction.MEAN, total=float), seeds),
        seeds=seeds,
    )

    def step(x: Tensor, y: Tensor) -> None:
        runtime.step(Request(args=(x,), kwargs={}, target=y, training=True), context=torch.enable_grad)

    return held, step, runtime


def theirs(name: str, rank: int, options: argparse.Namespace) -> tuple[dict[int, Device], Any, Any]:
    """Return this rank's devices, a function that runs a step, and torch's stages."""
    held = devices(name, rank, options, in_tuple=False)
    count = len(placement_of(name, options))
    stages = [PipelineStage(device, index, count, torch.device("cpu")) for index, device in held.items()]
    base, _ = _parsed(name)
    given = stages if base in SEVERAL_STAGES else stages[0]
    schedule = SCHEDULES[base](given, options.micro_batches, loss_fn=loss)  # type: ignore[abstract]

    def step(x: Tensor, y: Tensor) -> None:
        schedule.step(*((x,) if 0 in held else ()), **({"target": y} if count - 1 in held else {}))

    return held, step, stages


def their_buffers(stages: list[Any]) -> int:
    infos = [row for stage in stages for row in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())]
    return sum(isinstance(getattr(info, "buffer", None), Tensor) for row in infos for info in row)


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
    systems = {f"{system} {name}": _system(system, name, rank, options) for system, name in contestants(options)}
    for group in groups(options):
        rows = []
        for pair in range(options.pairs + 1):
            before = cpu_seconds()
            row: dict[str, float] = {}
            for system in group if pair % 2 else group[::-1]:
                dist.barrier()
                stamps = torch.tensor([-time.monotonic(), 0.0], dtype=torch.float64)
                systems[system][1](x, y)
                stamps[1] = time.monotonic()
                dist.all_reduce(stamps, op=dist.ReduceOp.MAX)
                row[system] = float(stamps.sum())
            row["foreign"] = foreign_share(before, cpu_seconds())
            rows.append(row)
        everyone: list[Any] = [None] * ranks
        dist.all_gather_object(everyone, {system: _counts(systems[system]) for system in group})
        if rank == 0:
            result = {"group": group, "rows": rows[1:], "counts": everyone}
            with (Path(folder) / "results.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
    dist.destroy_process_group()


def contestants(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return what runs: every schedule by autopipe, and by torch where it has it and is asked for."""
    names = options.schedules.split(",")
    theirs_too = [("torch", name) for name in names if options.beside_torch and _parsed(name)[0] in SCHEDULES]
    return [*theirs_too, *(("autopipe", name) for name in names)]


def groups(options: argparse.Namespace) -> list[list[str]]:
    """Return what takes turns: all of one schedule, or everything at once."""
    every = [f"{system} {name}" for system, name in contestants(options)]
    if options.all_at_once:
        return [every]
    return [[one for one in every if one.split()[1] == name] for name in options.schedules.split(",")]


def _system(system: str, name: str, rank: int, options: argparse.Namespace) -> Any:
    return theirs(name, rank, options) if system == "torch" else ours(name, rank, options)


def _counts(system: Any) -> tuple[int, int]:
    held, _, inside = system
    buffers = their_buffers(inside) if isinstance(inside, list) else inside.timeline().peak_receive_buffers
    return sum(device.peak_live for device in held.values()), buffers


def summary(result: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield medians over the kept rounds; the ideal is the schedule's own step with free links."""
    kept = [row for row in result["rows"] if row["foreign"] <= FOREIGN_LIMIT or options.keep_all]
    best_torch = (
        min((statistics.median(row[s] for row in kept), s) for s in result["group"] if s.startswith("torch"))
        if kept and any(s.startswith("torch") for s in result["group"])
        else None
    )
    for system in result["group"]:
        name = system.split()[1]
        stages = stage_costs(name, options)
        schedule = schedule_of(name, options, hop_ns=HOP_NS)
        ideal = simulate_run(schedule, stages, edge_costs(len(stages), 0), with_spans=False)
        predicted = simulate_run(
            schedule, stages, edge_costs(len(stages), MEASURED_HOP_NS), conditions=MEASURED, with_spans=False
        )
        step = statistics.median(row[system] for row in kept) if kept else float("nan")
        work = sum(sum(row) for row in stage_seconds(name, options)) * options.micro_batches / options.ranks
        twin = f"torch {name}"
        line = {
            "system": system,
            "ranks": options.ranks,
            "micro_batches": options.micro_batches,
            "rounds": f"{len(kept)} of {len(result['rows'])}",
            "step_ms": 1000 * step,
            "over_ideal": step * 1e9 / ideal.makespan_ns,
            "predicted_ms": predicted.makespan_ns / 1e6,
            "ideal_utilisation": work * 1e9 / ideal.makespan_ns,
            "utilisation": work / step,
            "live_outputs": [counts[system][0] for counts in result["counts"]],
            "receive_buffers": [counts[system][1] for counts in result["counts"]],
            "in_flight": ideal.peak_in_flight,
        }
        if kept and system != twin and twin in result["group"]:
            line["ratio"] = statistics.median(row[system] / row[twin] for row in kept)
        if best_torch is not None and options.all_at_once:
            line["ratio_to_torchs_best"] = statistics.median(row[system] / row[best_torch[1]] for row in kept)
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--schedules", default="gpipe,1f1b", help="interleaved:4 has four stages a rank")
    parser.add_argument("--times", default="10,10,10", help="F,I,W of a rank's whole share in ms; by rank after ;")
    parser.add_argument("--limit", type=int, help="stage-micro-batches that a fitted schedule may hold on a rank")
    parser.add_argument("--alone", dest="beside_torch", action="store_false", help="run autopipe only")
    parser.add_argument("--all-at-once", action="store_true", help="let all schedules take turns")
    parser.add_argument("--keep-all", action="store_true", help="keep rounds measured under foreign load")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (options, folder), nprocs=options.ranks)
        for text in (Path(folder) / "results.jsonl").read_text().splitlines():
            for line in summary(json.loads(text), options):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
