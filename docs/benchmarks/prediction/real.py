"""Lay the planned step beside the measured one on two ranks with real layers, profile and run in turn.

Two processes of one thread each profile at the same time, plan, and train; every repeat does all of it anew. A step is
what a user's loop has between the ends of two optimizer steps; the median of a row of them on the slower rank counts.

    torchrun --standalone --nproc-per-node 2 docs/benchmarks/prediction/real.py --model gpt
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import autopipe
from autopipe.cli.demo.model import CONTEXT, build, next_byte_loss
from autopipe.cli.demo.text import draw_batch, read_text
from autopipe.cli.observed import Usage, UsageMeter, foreign_share
from autopipe.documents.plan import Plan
from autopipe.executor.launch import broadcast, join_group
from autopipe.planner import simulate_plan
from autopipe.profiler.ranks import measure_ranks
from autopipe.reporting.timeline_comparison import compare_timelines

RANKS = 2
FOREIGN_LIMIT = 0.15  # a repeat is dropped when other programs used more than this share of the machine, no other way
WARM_UP, STEPS = 6, 15
GIB = 1024**3


class Unit(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.second(functional.relu(self.first(x))))


def cnn() -> nn.Module:
    """Return a network of pictures of 32 x 32 whose layers are uneven: fewer points and more channels further on."""
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for narrow, wide in ((32, 64), (64, 128)):
        parts += [Unit(narrow), Unit(narrow), nn.Conv2d(narrow, wide, 3, stride=2, padding=1)]
    return nn.Sequential(*parts, Unit(128), Unit(128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def subject(name: str) -> tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor], tuple[int, ...]]:
    """Return a model, one mini-batch, its target, the loss, and the micro-batch sizes to profile."""
    if name == "gpt":
        batch = draw_batch(read_text(), step=0, batch=16, time=CONTEXT)
        return build(), batch.inputs, batch.target, next_byte_loss, (1, 2, 4)
    torch.manual_seed(0)
    return cnn(), torch.randn(32, 3, 32, 32), torch.randint(10, (32,)), functional.cross_entropy, (2, 4, 8)


def repeat(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Profile, plan and train once; return what was predicted and measured."""
    model, inputs, target, loss, sizes = subject(options.model)
    usage = UsageMeter()
    most = max(sizes)
    profile = measure_ranks(
        lambda: autopipe.profile(
            model,
            (inputs[:most],),
            target=target[:most],
            loss_fn=loss,
            micro_batches=sizes,
            budget_s=options.budget,
        ),
        device,
    )
    plan = broadcast(
        lambda gpus: autopipe.partition(
            profile, gpus=gpus, batch_size=len(inputs), memory_bytes=4 * GIB, stages=gpus, schedule=options.schedule
        ),
        Plan,
    )
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=loss)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)

    def step() -> None:
        pipe.step(inputs, target=target)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    dist.barrier()
    marks = [time.perf_counter_ns()]
    for _ in range(STEPS):
        step()
        marks.append(time.perf_counter_ns())
    measured_ns = statistics.median(end - begin for begin, end in pairwise(marks))
    usages: list[Any] = [None] * RANKS
    dist.all_gather_object(usages, (tuple(usage.read()), measured_ns))
    pipe.step(inputs, target=target)
    pairs = compare_timelines(simulate_plan(plan), pipe.timeline())
    step_ns = max(ns for _, ns in usages)
    return {
        "schedule": plan.schedule,
        "micro_batches": plan.micro_batches,
        "cuts": [stage.end for stage in plan.stages[:-1]],
        "predicted_ms": round(plan.step_ns / 1e6, 2),
        "measured_ms": round(step_ns / 1e6, 2),
        "error_percent": round(100 * (plan.step_ns / step_ns - 1), 2),
        "foreign": round(foreign_share([Usage(*row) for row, _ in usages]) or 0.0, 3),
        "parts_percent": {pair.name: round(100 * pair.error, 1) for pair in pairs if pair.error is not None},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("gpt", "cnn"), default="gpt")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--repeats", type=int, default=9, help="those that count: quiet ones")
    parser.add_argument("--most", type=int, default=18, help="repeats after which it ends, quiet or not")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for timing in a profile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = join_group()
    rows: list[dict[str, Any]] = []
    while len(rows) < options.most and sum(row["foreign"] <= FOREIGN_LIMIT for row in rows) < options.repeats:
        rows.append(repeat(options, device))
        if dist.get_rank() == 0:
            print(json.dumps(rows[-1]), flush=True)
    kept = sorted(row["error_percent"] for row in rows if row["foreign"] <= FOREIGN_LIMIT)
    if dist.get_rank() == 0 and kept:
        sizes = [abs(error) for error in kept]
        summary = {
            "model": options.model,
            "kept": f"{len(kept)} of {len(rows)}",
            "median_error_percent": statistics.median(kept),
            "median_size_percent": statistics.median(sizes),
            "worst_size_percent": max(sizes),
        }
        print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
