"""Count what a middle rank holds at its peak, beside torch.distributed.pipelining, as micro-batches grow in number.

Four stages that recompute, 4 MiB across each boundary. Every storage of a rank is counted as it comes and goes, from
before either system is built: parameters, gradients, activations, receive buffers.

    python docs/benchmarks/memory/memory.py
"""

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

sys.path.append(str(Path(__file__).parents[1] / "measuring"))

from turns import launch

import autopipe
from autopipe.documents.plan import Plan
from autopipe.hardware.cluster import Cluster
from autopipe.planner import evaluate
from autopipe.profiler.memory import StorageLedger

RANKS, WIDTH, ROWS, PER_STAGE = 4, 512, 2048, 2
MIB = 2**20


class Block(nn.Module):
    """A residual block that recomputes: 4 MiB in, 4 MiB out."""

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.work, x, use_reentrant=False) if self.recomputes else self.work(x)

    def work(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


def build(*, recomputes: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(recomputes=recomputes) for _ in range(RANKS * PER_STAGE)))


def draw(micro_batches: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, micro_batches, ROWS, WIDTH).unbind()


def plan_of(micro_batches: int) -> Plan:
    """Return an even plan of which every layer recomputes."""
    x, y = draw(1)
    model = build(recomputes=False)
    profile = autopipe.profile(
        model, x, target=y, loss_fn=functional.mse_loss, micro_batches=(1,), leaf=(Block,), optimizer="sgd", budget_s=0
    )
    layers = len(profile.layers)
    return evaluate(
        profile, Cluster.uniform(RANKS), tuple(range(0, layers + 1, PER_STAGE)),
        batch_size=micro_batches, micro_batch_size=1, recompute=range(layers),
    )  # fmt: skip


def torch_step(micro_batches: int) -> Callable[[Tensor, Tensor], Any]:
    rank = dist.get_rank()
    part = build(recomputes=True)[PER_STAGE * rank : PER_STAGE * (rank + 1)]
    stage = PipelineStage(part, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=functional.mse_loss)
    return lambda x, y: schedule.step(*((x,) if rank == 0 else ()), **({"target": y} if rank == RANKS - 1 else {}))


def our_step(plan: Plan) -> Callable[[Tensor, Tensor], Any]:
    pipe = autopipe.pipeline(build(recomputes=False), plan=plan, loss_fn=functional.mse_loss)
    return lambda x, y: pipe.step(x, target=y)


def counted(build_step: Callable[[], Callable[[Tensor, Tensor], Any]], micro_batches: int) -> tuple[int, int]:
    """Return the peak of two steps, and what is held after them, inputs and targets left out."""
    x, y = draw(micro_batches)
    gc.collect()
    with StorageLedger() as ledger:
        step = build_step()
        gc.collect()
        ledger.reset_peak()
        for _ in range(2):
            step(x, y)
        gc.collect()
        return ledger.peak_bytes, ledger.current_bytes


def run(rank: int, plans: dict[int, Plan]) -> None:
    for micro_batches, plan in plans.items():
        systems = {"torch": lambda m=micro_batches: torch_step(m), "autopipe": lambda p=plan: our_step(p)}
        peaks = {}
        for name, system in systems.items():
            everyone: list[Any] = [None] * RANKS
            dist.all_gather_object(everyone, counted(system, micro_batches))
            peaks[name] = everyone[1][0]
            if rank == 0:
                row = "  ".join(f"{peak / MIB:6.1f} ({held / MIB:5.1f})" for peak, held in everyone)
                print(f"m = {micro_batches:2d}  {name:9s} {row}", flush=True)
        if rank == 0:
            foretold = "  ".join(f"{one.peak_bytes / MIB:6.1f}        " for one in plan.ranks)
            print(f"        foretold  {foretold}")
            print(f"        rank 1: autopipe's peak is {peaks['autopipe'] / peaks['torch']:.3f} of torch's", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batches", default="4,16,32")
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    options = parser.parse_args()
    counts = [8] if options.quick else [int(count) for count in options.micro_batches.split(",")]
    torch.set_num_threads(1)
    print("MiB at the peak of two steps, and held after them (with gradients), by rank")
    launch(run, RANKS, {count: plan_of(count) for count in counts})


if __name__ == "__main__":
    main()
