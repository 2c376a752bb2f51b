"""Time the planner on profiles of a GPT's shape: embedding, uneven blocks, head; memory limits that bind.

Seconds are of one processor, so that other work on the machine counts little.
"""

import argparse
import os
import random
import statistics
import time

import msgspec

from autopipe.costs.size import at_size
from autopipe.documents.profile import Cost, Profile, ProfiledLayer, ProfiledValue, SharedParameter, Source
from autopipe.errors import InfeasibleError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner import Request, plan
from autopipe.planner.bounds import everything, frontier, reduce
from autopipe.planner.deadline import Deadline
from autopipe.planner.ilp import solve
from autopipe.planner.kind import Kind
from autopipe.planner.levels import fixed_level
from autopipe.planner.problem import Problem, make_problem, objective_ns
from autopipe.planner.score import score
from autopipe.planner.shortage import shortage
from autopipe.planner.solved import solve_problem
from autopipe.planner.wishes import Wishes

MIB, GIB = 1024**2, 1024**3
LINK = Link(latency_ns=10_000, bytes_per_s=25 * 10**9)
SIZES = (1, 2, 4)


def gpt_like(layers: int, seed: int) -> Profile:
    """A profile whose blocks take 8 to 12 ms, its head three times that; every figure scales with the micro-batch."""
    draw = random.Random(seed)
    names = ["embedding", *(f"blocks.{index}" for index in range(layers - 2)), "head"]
    built = []
    for index, name in enumerate(names):
        weight = {0: 0.3, layers - 1: 3.0}.get(index, draw.uniform(0.8, 1.2))
        held = round({0: 800, layers - 1: 800}.get(index, draw.uniform(350, 450)) * MIB)
        costs = tuple(
            Cost(
                forward_ns=round(weight * 1e6 * (0.4 + 3 * size)),
                backward_ns=round(weight * 2e6 * (0.4 + 3 * size)),
                saved_bytes=round(weight * size * 90 * MIB),
                transient_bytes=size * 40 * MIB,
                source=Source.ROOFLINE,
            )
            for size in SIZES
        )
        built.append(
            ProfiledLayer(
                name=name,
                parameter_bytes=held,
                gradient_bytes=held,
                optimizer_bytes=2 * held,
                buffer_bytes=0,
                optimizer_ns=held // 400,
                costs=costs,
            )
        )
    crossing = tuple(
        ProfiledValue(
            name=f"hidden{index}",
            producer=index,
            consumers=(index + 1,),
            requires_grad=True,
            bytes=tuple(size * 12 * MIB for size in SIZES),
        )
        for index in range(layers - 1)
    )
    nothing = Cost(forward_ns=0, backward_ns=0, saved_bytes=0, transient_bytes=0, source=Source.ROOFLINE)
    return Profile(
        model=f"gpt of {layers} layers",
        device="made up",
        torch="-",
        dtype="float16",
        optimizer="adamw",
        loss_name="cross_entropy",
        clock="-",
        micro_batches=SIZES,
        layers=tuple(built),
        values=crossing,
        loss=(nothing,) * len(SIZES),
        graph_fingerprint=f"{layers}/{seed}",
    )


def one_each(profile: Profile, cluster: Cluster, stages: int, batch: int) -> Problem:
    """The problem of 1F1B with one stage on each device, at micro-batches of one."""
    return make_problem(
        fixed_level(at_size(profile, 1)),
        DeviceGrid.of(cluster, stages),
        kind=Kind(schedule="1f1b"),
        micro_batches=batch,
    )


def tight_limit(profile: Profile, stages: int, batch: int, slack: float) -> int:
    """Return ``slack`` times the least memory per device under which anything fits at micro-batches of one."""
    cluster = Cluster.uniform(stages, memory_bytes=1, intra_node=LINK)
    problem = one_each(profile, cluster, stages, batch)
    return round(slack * (1 + shortage(problem).excess_bytes))


def row(
    layers: int,
    stages: int,
    batch: int,
    seeds: int,
    slacks: tuple[float, ...],
    micro_batch: int | None,
    schedule: str | None = "1f1b",
) -> None:
    seconds, gaps, solver_gaps, statuses = [], [], [], set()
    for seed in range(seeds):
        profile = gpt_like(layers, seed)
        for slack in slacks:
            limit = tight_limit(profile, stages, batch, slack)
            cluster = Cluster.uniform(stages, memory_bytes=limit, intra_node=LINK)
            start = time.process_time()
            try:
                asked = Request(batch_size=batch, micro_batch_size=micro_batch, stages=stages, schedule=schedule)
                found = plan(profile, cluster, asked)
            except InfeasibleError:
                statuses.add("infeasible")
                continue
            seconds.append(time.process_time() - start)
            statuses.add(found.certificate.status)
            gaps.append(found.certificate.gap)
            solver_gaps.append(found.certificate.solver_gap)
    sizes = micro_batch or "1 to 4"
    print(
        f"| {layers} | {stages} | {batch} | {sizes} | {len(seconds)} | {statistics.median(seconds):.3f} | "
        f"{max(seconds):.3f} | {', '.join(sorted(statuses))} | {max(solver_gaps):.1e} | {100 * max(gaps):.2f} % |",
        flush=True,
    )


def without_reduction(layers: int, stages: int, batch: int, limit_s: float) -> None:
    """Compare the engine on all intervals with the engine on those that the dynamic programme leaves."""
    profile = gpt_like(layers, 0)
    limit = tight_limit(profile, stages, batch, 1.1)
    cluster = Cluster.uniform(stages, memory_bytes=limit, intra_node=LINK)
    problem = one_each(profile, cluster, stages, batch)
    known = frontier(problem)
    assert known is not None
    every = everything(problem)
    for name, left in (("all", every), ("left", reduce(known, objective_ns(problem, known.best.bounds)))):
        start = time.process_time()
        found = solve(problem, left, time_limit_s=limit_s)
        taken = time.process_time() - start
        status = "nothing found" if found is None else f"{found.status}, gap {found.gap:.1e}"
        print(f"| {layers} | {stages} | {name} | {len(left.arcs)} | {taken:.3f} | {status} |", flush=True)


def alone(layers: int) -> None:
    """Time instances whose side conditions the dynamic programme does not know, so that its split cannot be taken."""
    profile = gpt_like(layers, 0)
    cluster = Cluster.uniform(4, intra_node=LINK)
    kind = Kind(schedule="interleaved", virtual=2)
    block = tuple(range(layers // 2 - 4, layers // 2 + 4))
    shared = (SharedParameter(name="embedding", layers=(0, 7 * layers // 10), bytes=800 * MIB),)
    tied = msgspec.structs.replace(profile, shared=shared)
    freely = make_problem(fixed_level(at_size(profile, 1)), DeviceGrid.of(cluster, 4), kind=kind, micro_batches=16)
    known = frontier(freely)
    assert known is not None
    full = score(freely, known.best.bounds)
    limit = sorted(full.run.peak_bytes)[-1] - GIB
    cases = (
        ("a tied pair on one rank", tied, cluster, Wishes(together=((0, 7 * layers // 10),))),
        ("a block kept together", profile, cluster, Wishes(together=(block,))),
        ("virtual stages share memory", profile, Cluster.uniform(4, memory_bytes=limit, intra_node=LINK), Wishes()),
    )
    for name, one, devices, wishes in cases:
        problem = make_problem(
            fixed_level(at_size(one, 1)), DeviceGrid.of(devices, 4), kind=kind, micro_batches=16, wishes=wishes
        )
        start = time.process_time()
        found = solve_problem(problem, Deadline.after(60), "highs")
        taken = time.process_time() - start
        assert found is not None
        by = "the programme alone" if not found.also else "also by the dynamic programme"
        solution = found.solution
        print(f"| {layers} | {name} | {by} | {solution.status} | {solution.gap:.1e} | {taken:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for the engine without reduction")
    options = parser.parse_args()
    plan(gpt_like(4, 0), Cluster.uniform(2), Request(batch_size=2, stages=2))  # loads PuLP and HiGHS
    print(f"load average before: {os.getloadavg()[0]:.2f}\n")
    print(
        "| layers | stages | batch | micro-batch | plans "
        "| median CPU s | worst CPU s | status | solver gap | step gap |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    slacks = (1.02, 1.1, 1.5)
    row(98, 8, 64, options.seeds, slacks, 1)
    row(98, 8, 64, options.seeds, slacks, None)
    row(98, 8, 64, 1, slacks, None, None)
    for layers, stages in ((26, 8), (50, 8), (194, 8), (386, 8), (98, 2), (98, 4), (98, 16), (98, 32), (98, 64)):
        row(layers, stages, 64, 2, slacks, 1)
    row(1154, 16, 64, 1, (1.1,), 1)
    print("\n| layers | stages | intervals | how many | engine CPU s | status |")
    print("|---|---|---|---|---|---|")
    without_reduction(98, 8, 64, options.limit)
    print("\n| layers | side condition | found by | status | solver gap | CPU s |")
    print("|---|---|---|---|---|---|")
    for layers in (26, 50):
        alone(layers)
    print(f"\nload average after: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
