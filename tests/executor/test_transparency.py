"""The test that matters most: a pipeline's losses and gradients are the plain model's."""

import copy
import itertools
from typing import Any, NamedTuple

import pytest
import torch

from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.named import make
from tests.models import JOBS
from tests.processes import ProcessPool
from tests.reference import differences, even_bounds, exempt, plain_step

BATCH = 8
STEPS = 2
EXEMPT = {"gpt": {"tokens.weight"}}


def micro_batch_counts(stages: int) -> list[int]:
    """Return m below, at and above p."""
    return sorted({max(1, stages - 1), stages, stages + 3})


CASES = [
    (name, stages, m, schedule)
    for name, stages in itertools.product(JOBS, (1, 2, 3, 4))
    for m in micro_batch_counts(stages)
    for schedule in ("gpipe", "1f1b")
]
# Over processes: every pair of (model, p), (model, schedule), (p, m, schedule) at least once.
PAIRWISE = [
    (name, stages, micro_batch_counts(stages)[(index + stages) % len(micro_batch_counts(stages))], schedule)
    for index, name in enumerate(JOBS)
    for stages in (2, 3, 4)
    for schedule in (("gpipe", "1f1b")[(index + stages) % 2], "1f1b")
]


class Outcome(NamedTuple):
    """What differs on a rank, what was exempted from bit-equality, and the parameters that were compared."""

    different: list[str]
    exempted: set[str]
    compared: set[str]


def check(name: str, size: int, micro_batches: int, schedule: str, virtual: int = 1, **where: Any) -> Outcome:
    """Train two steps in a pipeline and plainly, and compare this rank's part."""
    job = JOBS[name]
    torch.manual_seed(size)
    model = job.build()
    plain = copy.deepcopy(model)
    recording = record(model, (job.draw(BATCH)[0],))
    layers = len(recording.graph.layers)
    layout = Layout(
        bounds=even_bounds(layers, size * virtual),
        stage_ranks=make(schedule, stages=size, micro_batches=1, virtual=virtual).stage_ranks,
        schedule=schedule,
        micro_batches=micro_batches,
        virtual_stages=virtual,
    )
    exempted = exempt(recording.graph, layout.bounds, layout.stage_ranks)
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss, **where)
    found = []
    for step in range(STEPS):
        x, y = job.draw(BATCH)
        loss = pipe.step(x, target=y)
        wanted = plain_step(plain, job.loss, (x,), y, micro_batches)
        if not torch.equal(loss, wanted):
            found.append(f"loss of step {step}: {loss.item()} against {wanted.item()}")
    mine = {name for name, _ in pipe.named_parameters()}
    held = {name for module in pipe.modules() for name, _ in module.named_buffers()}
    found += [name for name in differences(model, plain, exempted) if name in mine | held]
    norm = pipe.get_total_norm()
    wanted_norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])
    if not torch.allclose(norm, wanted_norm, rtol=1e-6) or (not exempted and not torch.equal(norm, wanted_norm)):
        found.append(f"norm {norm.item()} against {wanted_norm.item()}")
    pipe.close()
    return Outcome(found, exempted, mine)


def on_rank(rank: int, *case: Any) -> Outcome:
    return check(*case)


def all_parameters(name: str) -> set[str]:
    return {parameter for parameter, _ in JOBS[name].build().named_parameters()}


# The other schedules: on every model and size over threads, pairwise over processes.
OTHERS = [
    (name, ranks, m, schedule, virtual)
    for name, ranks, m in itertools.product(JOBS, (2, 4), (1, 3, 4, 8))
    for schedule, virtual in (
        ("interleaved", 1),
        ("interleaved", 2),
        ("bfs", 2),
        ("zb-h1", 1),
        ("zb-h2", 1),
        ("zb-v", 2),
        ("dualpipe-v", 2),
    )
    if name in ("gpt", "cnn") or ranks * virtual <= 4  # the others have fewer layers than eight stages need
]
OTHERS_PAIRWISE = [case for index, case in enumerate(OTHERS) if index % 7 == 0]


@pytest.mark.case(20)
@pytest.mark.parametrize(("name", "stages", "micro_batches", "schedule"), CASES)
def test_threads_train_like_the_plain_model(name: str, stages: int, micro_batches: int, schedule: str) -> None:
    outcome = check(name, stages, micro_batches, schedule, ranks=stages)
    assert outcome.different == []
    assert outcome.exempted == (EXEMPT.get(name, set()) if stages > 1 else set())
    assert outcome.compared == all_parameters(name)


@pytest.mark.case(20)
@pytest.mark.parametrize(("name", "stages", "micro_batches", "schedule"), sorted(set(PAIRWISE)))
def test_processes_train_like_the_plain_model(
    processes: ProcessPool, name: str, stages: int, micro_batches: int, schedule: str
) -> None:
    outcomes = processes.run(on_rank, stages, name, stages, micro_batches, schedule)
    for outcome in outcomes:
        assert outcome.different == []
        assert outcome.exempted == EXEMPT.get(name, set())
    assert set().union(*(outcome.compared for outcome in outcomes)) == all_parameters(name)


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "schedule", "virtual"), OTHERS)
def test_every_schedule_trains_like_the_plain_model(
    name: str, ranks: int, micro_batches: int, schedule: str, virtual: int
) -> None:
    outcome = check(name, ranks, micro_batches, schedule, virtual, ranks=ranks)
    assert outcome.different == []
    assert outcome.exempted == EXEMPT.get(name, set())
    assert outcome.compared == all_parameters(name)


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "schedule", "virtual"), OTHERS_PAIRWISE)
def test_every_schedule_trains_like_the_plain_model_over_processes(
    processes: ProcessPool, name: str, ranks: int, micro_batches: int, schedule: str, virtual: int
) -> None:
    outcomes = processes.run(on_rank, ranks, name, ranks, micro_batches, schedule, virtual)
    for outcome in outcomes:
        assert outcome.different == []
        assert outcome.exempted == EXEMPT.get(name, set())
    assert set().union(*(outcome.compared for outcome in outcomes)) == all_parameters(name)
