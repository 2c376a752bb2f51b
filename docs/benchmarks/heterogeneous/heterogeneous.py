"""A plan that knows of slow devices and a slow link, against the best plan that takes all devices to be equal.

Two machines with a fast and a slow device each, and a slow link between them; stages sleep as long as the layers of a
profiled model would take there. The planner that assumes equal devices gets the mean speed and the fast link; of
all orders of devices its plan is then given the one with the shortest simulated step.

    python docs/benchmarks/heterogeneous/heterogeneous.py --model unet
"""

import argparse
import contextlib
import statistics
import sys
from itertools import permutations
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "measuring"))

from emulation import emulated, running
from models import SUBJECTS, build, profiled
from turns import OURS, launch, quiet, rounds

import autopipe
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner import evaluate

BATCH, DEPTH = 16, 2
SPEEDS = (1.0, 0.5, 1.0, 0.5)
FAST = Link(latency_ns=200_000, bytes_per_s=1_000_000_000)
SLOW = Link(latency_ns=1_000_000, bytes_per_s=30_000_000)


def cluster_of(link: Link) -> Cluster:
    """Return two machines with a fast and a slow device each."""
    devices = tuple(Device(speed=speed, node=place // 2) for place, speed in enumerate(SPEEDS))
    return Cluster(devices=devices, intra_node=FAST, inter_node=link)


def assuming_equal(profile: Profile, cluster: Cluster) -> dict[str, Plan]:
    """Return what is planned for equal devices, scored on the real ones: in the given order, and in the best one.

    Under every schedule that has a name and one or two stages a rank, the best split for equal devices is tried.
    """
    size = len(SPEEDS)
    speed = statistics.mean(SPEEDS)
    equal = Cluster(devices=(Device(speed=speed),) * size, intra_node=FAST, inter_node=FAST)
    wanted = {"batch_size": BATCH, "replicas": 1}
    found: dict[str, Plan] = {}
    for schedule in ("1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v"):
        plan = autopipe.partition(profile, cluster=equal, schedule=schedule, **wanted)
        bounds = (0, *(stage.end for stage in plan.stages))
        kind = {"schedule": plan.schedule, "virtual": plan.virtual_stages, "depth": plan.depth}
        for order in permutations(range(size)):
            real = evaluate(
                profile, cluster, bounds, batch_size=BATCH, micro_batch_size=plan.micro_batch_size,
                device_order=order, **kind,
            )  # fmt: skip
            for name in ("equal, best order", *(("equal, given order",) if order == tuple(range(size)) else ())):
                if name not in found or real.step_ns < found[name].step_ns:
                    found[name] = real
    return found


def run(rank: int, profile: Profile, cluster: Cluster, plans: dict[str, Plan], options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        steps = {name: stack.enter_context(running(profile, plan, cluster)) for name, plan in plans.items()}
        rows = rounds(steps, options.rounds, options.limit_s)
    if rank > 0:
        return
    kept = quiet(rows)
    for name, plan in plans.items():
        times = sorted(1e3 * row.seconds[name] for row in kept)
        ratio = statistics.median(row.seconds[name] / row.seconds[OURS] for row in kept)
        ends, order = [stage.end for stage in plan.stages], list(plan.device_order) or [0, 1, 2, 3]
        print(
            f"{name:20s} simulated {plan.step_ns / 1e6:7.1f} ms, median {statistics.median(times):7.1f} "
            f"({times[0]:.1f} to {times[-1]:.1f}), {ratio:.3f} of ours; {plan.schedule}, m = {plan.micro_batches}, "
            f"ends {ends}, devices {order}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SUBJECTS, default="unet")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit-s", type=float, default=60, help="of the rounds, quiet or not")
    parser.add_argument("--share-ms", type=float, default=30, help="of a fast rank's share of one sample's work")
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    options = parser.parse_args()
    budget_s = 12.0
    if options.quick:
        options.rounds, options.limit_s, budget_s = 2, 10, 1.0
    torch.set_num_threads(1)
    measured = profiled(options.model, build(options.model, DEPTH), budget_s)
    profile = emulated(measured, ranks=len(SPEEDS), share_ms=options.share_ms)
    cluster = cluster_of(SLOW)
    ours = autopipe.partition(profile, cluster=cluster, batch_size=BATCH, replicas=1)
    launch(run, len(SPEEDS), profile, cluster, {OURS: ours, **assuming_equal(profile, cluster)}, options)


if __name__ == "__main__":
    main()
