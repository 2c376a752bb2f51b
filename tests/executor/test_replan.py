"""A plan for more ranks than are left is made anew, and training goes on from the checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopipe
from autopipe.documents.files import load, save
from autopipe.errors import InputError
from tests.models import JOBS
from tests.processes import ProcessPool

JOB = JOBS["mlp"]


def start(seed: int, **options: Any) -> tuple[autopipe.Pipeline, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    pipe = autopipe.pipeline(JOB.build(), loss_fn=JOB.loss, on_change="replan", budget_s=0.2, **options)
    return pipe, torch.optim.Adam(pipe.parameters())


def run(pipe: autopipe.Pipeline, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        x, y = JOB.draw(8)
        losses.append(pipe.step(x, target=y).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.fixture(scope="module")
def profile() -> autopipe.Profile:
    torch.manual_seed(0)
    x, y = JOB.draw(8)
    return autopipe.profile(JOB.build(), (x,), target=y, loss_fn=JOB.loss, micro_batches=(1, 2), budget_s=0.2)


def as_pipeline(profile: autopipe.Profile, stages: int, tmp_path: Path) -> Path:
    """Return a file with a plan of so many stages, whether that is the fastest or not."""
    plan = autopipe.partition(profile, gpus=stages, batch_size=8)
    save(plan, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def left_over(rank: int, plan: str, folder: str, options: dict[str, Any]) -> tuple[int, list[float]]:
    pipe, optimizer = start(rank, plan=plan, **options)
    pipe.load(folder, optimizer=optimizer)
    assert pipe.plan is not None
    assert pipe.plan.batch_size * pipe.plan.data_parallel_size == 8
    torch.manual_seed(1)
    share = slice(pipe.replica, None, pipe.layout.replicas)
    losses = []
    for _ in range(3):
        x, y = JOB.draw(8)
        losses.append(pipe.step(x[share], target=y[share]).item())
        optimizer.step()
        optimizer.zero_grad()
    return pipe.plan.pipeline_size * pipe.plan.data_parallel_size, losses


def test_training_goes_on_with_the_ranks_that_are_left(
    profile: autopipe.Profile, processes: ProcessPool, tmp_path: Path
) -> None:
    plan = as_pipeline(profile, 3, tmp_path)
    pipe, optimizer = start(0, plan=plan)
    run(pipe, optimizer, 2)
    pipe.save(tmp_path, optimizer=optimizer)
    torch.manual_seed(1)
    losses = run(pipe, optimizer, 3)
    pipe.close()
    save(profile, tmp_path / "profile.json")
    x, y = JOB.draw(8)
    for options in ({"replan_profile": str(tmp_path / "profile.json")}, {"example": (x,), "target": y}):
        for size, found in processes.run(left_over, 2, str(plan), str(tmp_path), options):
            assert size == 2
            assert found == pytest.approx(losses, rel=1e-5)


def test_threads_plan_again_too_and_a_plan_that_fits_is_kept(profile: autopipe.Profile, tmp_path: Path) -> None:
    plan = as_pipeline(profile, 3, tmp_path)
    pipe, _ = start(0, plan=plan, ranks=2, replan_profile=profile)
    assert pipe.plan is not None
    assert pipe.plan.pipeline_size * pipe.plan.data_parallel_size == 2
    pipe.close()
    same, _ = start(0, plan=plan, ranks=3)
    assert same.plan == load(plan, autopipe.Plan)
    same.close()


def test_without_a_profile_or_an_example_the_error_says_what_is_missing(
    profile: autopipe.Profile, tmp_path: Path
) -> None:
    plan = as_pipeline(profile, 3, tmp_path)
    with pytest.raises(InputError, match=r"for 3 ranks and 2 are running.*replan_profile="):
        start(0, plan=plan, ranks=2)
    with pytest.raises(InputError, match="on_change='retry' is not known"):
        autopipe.pipeline(nn.Linear(2, 2), plan=plan, on_change="retry")
