"""One of several ranks computes slower than planned: is it found, and is the new plan faster?

Emulated devices: every layer sleeps. The plan is made for equal devices; one rank then sleeps longer.

    torchrun --nproc-per-node 4 docs/benchmarks/drift/drift.py [--slow-rank 1] [--slower 1.3]
"""

import argparse
import os
import statistics
import time

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopipe
from autopipe.documents.profile import Profile
from autopipe.executor.launch import broadcast, join_group

LAYERS, BATCH, WIDTH = 64, 32, 8
FORWARD_NS, BACKWARD_NS = 1_000_000, 2_000_000
SLOWER = [1.0]


class Wait(torch.autograd.Function):
    """Takes its time in both directions."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        time.sleep(FORWARD_NS * SLOWER[0] / 1e9)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        time.sleep(BACKWARD_NS * SLOWER[0] / 1e9)
        return gradient


class Slept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Wait.apply(x * self.weight)


def planned_profile(model: nn.Module) -> Profile:
    """Return a profile of equal layers: what a sleep takes is not computing, which is what is measured on a CPU."""
    profile = autopipe.profile(
        model,
        (torch.randn(2, WIDTH),),
        loss_fn=nn.functional.mse_loss,
        target=torch.randn(2, WIDTH),
        leaf=[Slept],
        budget_s=1.0,
        micro_batches=(2,),
    )
    layers = tuple(
        msgspec.structs.replace(
            layer,
            costs=tuple(
                msgspec.structs.replace(
                    cost, forward_ns=FORWARD_NS, backward_ns=BACKWARD_NS, input_grad_ns=None, weight_grad_ns=None
                )
                for cost in layer.costs
            ),
        )
        for layer in profile.layers
    )
    return msgspec.structs.replace(profile, layers=layers)


def steps(pipe: autopipe.Pipeline, count: int) -> list[float]:
    """Return what each of some steps after the first took, in ms."""
    times = []
    for step in range(count + 1):
        x, y = torch.randn(2, BATCH, WIDTH)
        dist.barrier()
        start = time.perf_counter()
        pipe.step(x, target=y)
        dist.barrier()
        if step >= 1:
            times.append(1e3 * (time.perf_counter() - start))
        for parameter in pipe.parameters():
            parameter.grad = None
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slower", type=float, default=1.3)
    parser.add_argument("--rounds", type=int, default=4, help="of five steps with each plan, in turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    join_group()
    model = nn.Sequential(*(Slept() for _ in range(LAYERS)))
    profiles = [planned_profile(model) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(profiles)
    profile = profiles[0]

    def first(ranks: int) -> autopipe.Plan:
        cluster = autopipe.Cluster.uniform(ranks)
        return autopipe.partition(
            profile, cluster=cluster, batch_size=BATCH, micro_batch_size=2, schedule="1f1b", stages=ranks, replicas=1
        )

    plan = broadcast(first, autopipe.Plan)
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=nn.functional.mse_loss)
    watch = pipe.watch_drift()
    undisturbed, quiet = steps(pipe, 9), watch.report
    if int(os.environ["RANK"]) == arguments.slow_rank:
        SLOWER[0] = arguments.slower
    slowed: list[float] = []
    found = None
    while found is None and len(slowed) < 20:
        slowed += steps(pipe, 4)
        found = pipe.steps - 10 if watch.report.slow else None
    steps(pipe, 14)  # all that the report is about is then slowed
    report = watch.report
    offered = watch.offer(profile)
    again = autopipe.pipeline(model, plan=offered.plan, loss_fn=nn.functional.mse_loss)
    before, after = [], []
    for _ in range(arguments.rounds):
        before += steps(pipe, 5)
        after += steps(again, 5)
    if dist.get_rank() == 0:
        layers = [tuple(stage.end - stage.begin for stage in one.stages) for one in (plan, offered.plan)]
        print(f"undisturbed: {statistics.median(undisturbed):.1f} ms; {quiet}")
        print(f"named {found} steps after the rank became slow: {report}")
        print(f"predicted: {report.step_ns / 1e6:.1f} ms, then {offered.plan.step_ns / 1e6:.1f} ms")
        print(f"layers of the stages {layers[0]}, then {layers[1]} (device order {offered.plan.device_order})")
        for name, times in (("old", before), ("new", after)):
            print(f"{name} plan: {statistics.median(times):.1f} ms ({min(times):.1f} to {max(times):.1f})")
        print(f"{100 * (statistics.median(before) / statistics.median(after) - 1):.1f} % faster", flush=True)


if __name__ == "__main__":
    main()
