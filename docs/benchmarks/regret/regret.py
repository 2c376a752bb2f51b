"""Execute every plan of two stages of a real model, and see how far the planner's is from the best of them.

Two ranks of one pinned thread profile the model together, then run every legal cut at every micro-batch size under
1F1B, and what `autopipe.partition` makes of that profile when it is told two stages.

    python docs/benchmarks/regret/regret.py --model gpt
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "measuring"))

from models import SUBJECTS, build, profiled
from turns import OURS, Step, add_options, agreed, contest, launch, report

import autopipe
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.profiled import measured_cluster
from autopipe.planner import evaluate
from autopipe.profiler.ranks import measure_ranks

RANKS, BATCH = 2, 16


def plans_of(profile: Profile) -> dict[str, Plan]:
    """Return the planner's plan, and every legal cut at every micro-batch size."""
    cluster, layers = measured_cluster(profile), len(profile.layers)
    cuts = [cut for cut in range(1, layers) if cut not in profile.forbidden_cuts]
    ours = autopipe.partition(profile, batch_size=BATCH, stages=RANKS, replicas=1, virtual=1)
    every = {
        f"cut {cut} of {layers}, m = {BATCH // size}": evaluate(
            profile, cluster, (0, cut, layers), batch_size=BATCH, micro_batch_size=size
        )
        for cut in cuts
        for size in profile.micro_batches
    }
    return {OURS: ours, **every}


@contextlib.contextmanager
def running(name: str, model: nn.Module, plan: Plan) -> Iterator[Step]:
    """Let ``model`` train as planned: yield its step, which leaves no gradients."""
    subject = SUBJECTS[name]
    torch.manual_seed(1)
    example, target = subject.draw(BATCH)
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=subject.loss)
    parameters = list(pipe.parameters())

    def step() -> None:
        pipe.step(**example, target=target)
        for parameter in parameters:
            parameter.grad = None

    yield step
    pipe.close()


def run(rank: int, options: argparse.Namespace) -> None:
    model = build(options.model)
    profile = measure_ranks(lambda: profiled(options.model, model, options.budget_s), torch.device("cpu"))
    plans = agreed(plans_of(profile) if rank == 0 else None)
    if options.quick:
        plans = dict(list(plans.items())[:: len(plans) // 6])
    once, rows = contest(
        {name: lambda p=plan: running(options.model, model, p) for name, plan in plans.items()}, options
    )
    if rank == 0:
        ours = plans[OURS]
        cut = f"cut {ours.stages[0].end} of {ours.stages[-1].end}, m = {ours.micro_batches}, {ours.schedule}"
        print(f"{options.model}: autopipe plans {cut}")
        report(once, rows, {name: plan.step_ns for name, plan in plans.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SUBJECTS, default="gpt")
    parser.add_argument("--budget-s", type=float, default=20, help="of the profile")
    add_options(parser, times=3)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.limit_s, options.budget_s = 2, 20, 1.0
    launch(run, RANKS, options)


if __name__ == "__main__":
    main()
