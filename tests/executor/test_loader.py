"""Loaders of any length: every rank sees the end at the same step."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autopipe.errors import StepError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from tests.executor.pipes import thread_pipe, twins
from tests.models import mlp
from tests.processes import ProcessPool
from tests.reference import differences, even_bounds, plain_step


def batches(count: float, batch: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``count`` batches; the last one is short where that is no whole number."""
    generator = torch.Generator().manual_seed(0)
    for index in range(int(count + 0.5)):
        size = batch if index < int(count) else batch // 2
        yield torch.randn(size, 64, generator=generator), torch.randn(size, 64, generator=generator)


def build(model: Any, stages: int) -> Pipeline:
    recording = record(model, (torch.randn(8, 64),))
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), stages),
        stage_ranks=tuple(range(stages)),
        schedule="1f1b",
        micro_batches=4,
    )
    return Pipeline(recording.module, recording.graph, layout, loss_fn=functional.mse_loss)


def train(rank: int, counts: tuple[float | None, ...]) -> tuple[int, list[str]]:
    """Train on this rank's loader; return the steps that it saw, and what differs from the plain model."""
    model, plain = twins(mlp)
    pipe = build(model, len(counts))
    loader = None if counts[rank] is None else batches(counts[rank])
    steps = 0
    for batch in pipe.batches(loader):
        x, y = batch or (None, None)
        pipe.step(x, target=y)
        steps += 1
    for _, (x, y) in zip(range(steps), batches(counts[0] or 0), strict=False):
        plain_step(plain, functional.mse_loss, (x,), y, 4)
    mine = {name for name, _ in pipe.named_parameters()}
    return steps, [name for name in differences(model, plain, set()) if name in mine]


@pytest.mark.case(6)
@pytest.mark.parametrize(("counts", "wanted"), [((3.5, None, 3.5), 4), ((5, None, 3), 3), ((2, 4, 9), 2)])
def test_every_rank_sees_the_end_at_the_same_step(
    processes: ProcessPool, counts: tuple[float | None, ...], wanted: int
) -> None:
    """Case 6: also where the loaders of the ranks are not equally long."""
    assert processes.run(train, 3, counts) == [(wanted, [])] * 3


def warned(rank: int, draws: tuple[str, str]) -> list[str]:
    """Return what a rank is warned of where it draws a batch by its own seed, by one for all, or its targets alone."""
    model, _ = twins(mlp)
    pipe = build(model, 2)
    torch.manual_seed(rank if draws[rank] == "own" else 7)
    x, y = None if draws[rank] == "targets" else torch.randn(8, 64), torch.randn(8, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            pipe.step(x, target=y if rank == 1 else None)
    return [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


@pytest.mark.parametrize(
    ("draws", "warnings_of_last"), [(("own", "own"), 1), (("all", "all"), 0), (("all", "targets"), 0)]
)
def test_targets_of_another_batch_than_the_inputs_are_warned_of_once(
    processes: ProcessPool, draws: tuple[str, str], warnings_of_last: int
) -> None:
    first, last = processes.run(warned, 2, draws)
    assert (len(first), len(last)) == (0, warnings_of_last)
    assert all("rank 1, which reads the targets, was given other inputs than rank 0" in text for text in last)


def failing(rank: int) -> str:
    def loader() -> Iterator[tuple[Tensor, Tensor]]:
        yield from batches(2)
        if rank == 1:
            raise OSError("the disk is gone")
        yield from batches(2)

    model, _ = twins(mlp)
    pipe = build(model, 2)
    try:
        for x, y in pipe.batches(loader()):
            pipe.step(x, target=y)
    except (OSError, StepError) as error:
        return str(error)
    return "none"


def test_a_loader_that_fails_on_one_rank_stops_all(processes: ProcessPool) -> None:
    first, second = processes.run(failing, 2)
    assert "loader of another rank failed" in first
    assert second == "the disk is gone"


@pytest.mark.case(6)
def test_one_process_reads_one_loader_to_its_end() -> None:
    model, plain = twins(mlp)
    pipe = thread_pipe(model, (torch.randn(8, 64),), stages=3, micro_batches=4, loss_fn=functional.mse_loss)
    seen = []
    for x, y in pipe.batches(batches(3.5)):
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
        seen.append(len(x))
    assert seen == [8, 8, 8, 4]
    assert differences(model, plain, set()) == []
    pipe.close()
