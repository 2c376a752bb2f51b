"""The product as a user gets it beside torch.distributed.pipelining as a user gets it, on eight emulated devices.

A real model is profiled first; the stages of both systems sleep as long as its layers take. autopipe runs the plan that
it makes of that profile, torch 1F1B on stages of equally many layers, at every micro-batch size: its best one counts.

    python docs/benchmarks/executor/emulated.py --models gpt,cnn,encoder-decoder,unet
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

sys.path.append(str(Path(__file__).parents[1] / "measuring"))

from emulation import draw, emulated, loss, running, sleeping
from models import SUBJECTS, build, profiled
from turns import OURS, Row, launch, quiet, rounds

import autopipe
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner.rules import equal_count

RANKS, BATCH, DEPTH = 8, 16, 2
HOP = Link(latency_ns=200_000)  # about what a message takes between two processes here


def torch_step(profile: Profile, cluster: Cluster, micro_batches: int) -> Callable[[], None]:
    """Return the step of torch.distributed.pipelining on stages of equally many layers."""
    rank, model = dist.get_rank(), sleeping(profile)
    for layer in model:
        layer.device = cluster.devices[rank]
    bounds = equal_count([1] * len(model), RANKS)
    stage = PipelineStage(model[bounds[rank] : bounds[rank + 1]], rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss)
    x, y = draw(BATCH)

    def step() -> None:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": y} if rank == RANKS - 1 else {}))

    return step


def run(rank: int, cluster: Cluster, jobs: dict[str, tuple[Profile, Plan]], options: argparse.Namespace) -> None:
    gains = []
    for name, (profile, plan) in jobs.items():
        with running(profile, plan, cluster) as step:
            # With fewer micro-batches than stages torch's 1F1B refuses.
            counts = [BATCH // size for size in profile.micro_batches if BATCH // size >= RANKS]
            theirs = {f"torch, m = {count}": torch_step(profile, cluster, count) for count in counts}
            rows = rounds({OURS: step, **theirs}, options.rounds, options.limit_s)
        if rank == 0:
            gains.append(report(name, profile, plan, quiet(rows)))
    if rank == 0:
        print(f"geometric mean of {len(gains)}: {math.prod(gains) ** (1 / len(gains)):.3f}x torch's best")


def report(name: str, profile: Profile, plan: Plan, rows: Sequence[Row]) -> float:
    """Print the steps of a model, and return how many times longer torch's best median step is."""
    ends = [stage.end for stage in plan.stages]
    print(f"{name}, {len(profile.layers)} layers: {plan.schedule}, m = {plan.micro_batches}, stages end at {ends}")
    medians = {}
    for system in rows[0].seconds:
        times = sorted(1e3 * row.seconds[system] for row in rows)
        medians[system] = statistics.median(times)
        foretold = f", foretold {plan.step_ns / 1e6:.1f}" if system == OURS else ""
        print(f"  {system:16s} median {medians[system]:7.1f} ms ({times[0]:.1f} to {times[-1]:.1f}){foretold}")
    best = min((system for system in medians if system != OURS), key=medians.__getitem__)
    ratios = sorted(row.seconds[best] / row.seconds[OURS] for row in rows)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    print(
        f"  {best} over {OURS}: {medians[best] / medians[OURS]:.3f}; in the same round "
        f"{statistics.median(ratios):.3f}, quartiles {low:.3f} and {high:.3f}",
        flush=True,
    )
    return medians[best] / medians[OURS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SUBJECTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit-s", type=float, default=40, help="of the rounds of one model, quiet or not")
    parser.add_argument("--budget-s", type=float, default=12, help="of one profile")
    parser.add_argument("--share-ms", type=float, default=30, help="of a rank's share of one sample's work")
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.limit_s, options.budget_s = 2, 5, 1.0
    torch.set_num_threads(1)
    cluster, jobs = Cluster.uniform(RANKS, intra_node=HOP), {}
    for name in options.models.split(","):
        measured = profiled(name, build(name, DEPTH), options.budget_s)
        profile = emulated(measured, ranks=RANKS, share_ms=options.share_ms)
        jobs[name] = profile, autopipe.partition(profile, cluster=cluster, batch_size=BATCH, replicas=1)
    launch(run, RANKS, cluster, jobs, options)


if __name__ == "__main__":
    main()
