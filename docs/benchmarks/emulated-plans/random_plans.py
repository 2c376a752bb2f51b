"""On emulated devices, the planner's plan against random plans and the rules of other systems, all executed.

The layer times are those of a real model that is profiled first; stages sleep. Half of the random plans are drawn
freely; the other half are the planner's own with cuts moved and another schedule, so that some are good.

    python docs/benchmarks/emulated-plans/random_plans.py --ranks 8 --model unet
"""

import argparse
import random
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "measuring"))

from emulation import emulated, running
from models import SUBJECTS, build, profiled
from turns import OURS, add_options, contest, launch, report

import autopipe
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import AutopipeError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import evaluate
from autopipe.planner.rules import block_partition, equal_count, least_bottleneck

BATCH, DEPTH = 16, 2
HOP = Link(latency_ns=200_000)  # about what a message takes between two processes here
KINDS = (("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("zb-h2", 1), ("interleaved", 2), ("bfs", 2), ("zb-v", 2))


def plans_of(profile: Profile, cluster: Cluster, count: int) -> dict[str, Plan]:
    """Return the planner's plan, those of the rules, and ``count`` random ones."""
    ours = autopipe.partition(profile, cluster=cluster, batch_size=BATCH, replicas=1)
    return {OURS: ours, **baselines(profile, cluster), **drawn(profile, cluster, ours, count)}


def baselines(profile: Profile, cluster: Cluster) -> dict[str, Plan]:
    """Return what four rules of other systems make of the layers, under 1F1B at every micro-batch size."""
    ranks, layers = len(cluster.devices), profile.layers
    times = [layer.costs[0].forward_ns + layer.costs[0].backward_ns for layer in layers]
    bounds = {
        "equal count": equal_count(times, ranks),
        "DeepSpeed, parameters": least_bottleneck([layer.parameter_bytes for layer in layers], ranks),
        "DeepSpeed, time": least_bottleneck(times, ranks),
        "torchgpipe, time": block_partition(times, ranks),
    }
    return {
        f"{name}, m={BATCH // size}": evaluate(profile, cluster, cuts, batch_size=BATCH, micro_batch_size=size)
        for name, cuts in bounds.items()
        for size in profile.micro_batches
    }


def drawn(profile: Profile, cluster: Cluster, ours: Plan, count: int) -> dict[str, Plan]:
    """Return random plans, every second one near ``ours``."""
    draw, plans = random.Random(0), {}
    while len(plans) < count:
        schedule, virtual = draw.choice(KINDS)
        size = draw.choice(profile.micro_batches)
        wanted = len(cluster.devices) * virtual - 1
        cuts = draw.sample(range(1, len(profile.layers)), min(wanted, len(profile.layers) - 1))
        if len(plans) % 2 and virtual == ours.virtual_stages:
            size = ours.micro_batch_size
            cuts = [stage.end + draw.choice((-1, 0, 0, 1)) for stage in ours.stages[:-1]]
        bounds = (0, *sorted(set(cuts)), len(profile.layers))
        kind = {"schedule": schedule, "virtual": virtual, "micro_batch_size": size}
        try:
            plan = evaluate(profile, cluster, bounds, batch_size=BATCH, **kind)
        except AutopipeError:
            continue  # these choices make no plan: too few layers, or cuts that fell together
        if plan.pipeline_size == len(cluster.devices):
            plans[f"{schedule}, m={BATCH // size}, number {len(plans)}"] = plan
    return plans


def run(rank: int, profile: Profile, cluster: Cluster, plans: dict[str, Plan], options: argparse.Namespace) -> None:
    systems = {name: lambda plan=plan: running(profile, plan, cluster) for name, plan in plans.items()}
    once, rows = contest(systems, options)
    if rank == 0:
        report(once, rows, {name: plan.step_ns for name, plan in plans.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--model", choices=SUBJECTS, default="unet")
    parser.add_argument("--plans", type=int, default=50, help="how many random ones")
    parser.add_argument("--share-ms", type=float, default=30, help="of a rank's share of one sample's work")
    add_options(parser, times=1)
    options = parser.parse_args()
    budget_s = 20.0
    if options.quick:
        options.rounds, options.limit_s, options.plans, budget_s = 2, 20, 4, 1.0
    torch.set_num_threads(1)
    measured = profiled(options.model, build(options.model, DEPTH), budget_s)
    profile = emulated(measured, ranks=options.ranks, share_ms=options.share_ms)
    cluster = Cluster.uniform(options.ranks, intra_node=HOP)
    plans = plans_of(profile, cluster, options.plans)
    ours = plans[OURS]
    print(f"{options.model}, {len(profile.layers)} layers on {options.ranks} emulated devices, {BATCH} samples")
    cuts = [stage.end for stage in ours.stages]
    print(
        f"autopipe plans {ours.schedule}, m = {ours.micro_batches}, v = {ours.virtual_stages}, ends {cuts}", flush=True
    )
    launch(run, options.ranks, profile, cluster, plans, options)


if __name__ == "__main__":
    main()
