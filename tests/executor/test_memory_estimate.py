"""The peak that a plan foretells for each rank is the peak that the rank's process counts, on uneven plans too."""

from typing import Any

import pytest
import torch

import autopipe
from autopipe.cli.demo.rank import counted_peak
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster
from autopipe.planner.evaluation import evaluate
from autopipe.profiler import measure
from tests.models import CNN, GPT, JOBS
from tests.processes import ProcessPool

SIZE, MICRO_BATCHES = 4, 6
BUILD = {"gpt": lambda: GPT(tied=False), "tied gpt": GPT, "cnn": lambda: CNN(16, 8)}


def draw(name: str, batch: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    job = JOBS[name.split()[-1]]
    torch.manual_seed(1)
    return *job.draw(batch), job.loss


def profile_of(name: str) -> Profile:
    inputs, target, loss = draw(name, SIZE)
    return measure(BUILD[name](), (inputs,), target=target, loss_fn=loss, micro_batches=(SIZE,), budget_s=0)


def rank_peak(rank: int, name: str, plan: Plan) -> int:
    inputs, target, loss = draw(name, SIZE * MICRO_BATCHES)
    pipe = autopipe.pipeline(BUILD[name](), plan=plan, loss_fn=loss)
    optimizer = torch.optim.AdamW(pipe.parameters())
    for _ in range(2):
        pipe.step(inputs, target=target)
        optimizer.step()
        optimizer.zero_grad()
    return counted_peak(pipe, optimizer, lambda: pipe.step(inputs, target=target))


@pytest.mark.parametrize(
    ("name", "schedule"), [("gpt", "1f1b"), ("tied gpt", "1f1b"), ("cnn", "1f1b"), ("cnn", "gpipe")]
)
def test_every_rank_of_an_uneven_plan_counts_what_was_foretold(
    processes: ProcessPool, name: str, schedule: str
) -> None:
    profile = profile_of(name)
    layers = len(profile.layers)
    bounds = (0, 3, layers - 4, layers)
    plan = evaluate(
        profile, Cluster.uniform(3), bounds, batch_size=SIZE * MICRO_BATCHES, micro_batch_size=SIZE, schedule=schedule
    )
    counted = processes.run(rank_peak, 3, name, plan)
    foretold = [rank.peak_bytes for rank in plan.ranks]
    assert foretold == pytest.approx(counted, rel=0.05)
