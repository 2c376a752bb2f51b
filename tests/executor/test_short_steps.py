"""Cases 2, 4, 5: fewer micro-batches than ranks, numbers that p does not divide, one peer before and after."""

import copy

import pytest
import torch
from torch import nn

from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.named import NAMES, V_SHAPED, VIRTUAL, placement
from tests.reference import differences, even_bounds, plain_step

TRAINING = [name for name in NAMES if name != "forward"]


def different(ranks: int, micro_batches: int, schedule: str, virtual: int) -> list[str]:
    """Train two steps in a pipeline and plainly; return what differs on this rank."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(8)))
    plain = copy.deepcopy(model)
    x = torch.randn(max(12, 2 * micro_batches), 16)
    recording = record(model, (x,))
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), ranks * virtual),
        stage_ranks=placement(schedule, ranks=ranks, virtual=virtual),
        schedule=schedule,
        micro_batches=micro_batches,
        virtual_stages=virtual,
    )
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=nn.functional.mse_loss, ranks=ranks)
    found = []
    for step in range(2):
        loss = pipe.step(x, target=x)
        if not torch.equal(loss, plain_step(plain, nn.functional.mse_loss, (x,), x, micro_batches)):
            found.append(f"loss of step {step}")
    mine = {name for name, _ in pipe.named_parameters()}
    pipe.close()
    return found + [name for name in differences(model, plain, set()) if name in mine]


@pytest.mark.case(2)
@pytest.mark.parametrize("schedule", TRAINING)
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_fewer_micro_batches_than_ranks_train_like_the_plain_model(schedule: str, micro_batches: int) -> None:
    assert different(4, micro_batches, schedule, 2 if schedule in VIRTUAL else 1) == []


@pytest.mark.case(4)
@pytest.mark.parametrize("micro_batches", [10, 6, 3])
def test_interleaved_takes_any_number_of_micro_batches(micro_batches: int) -> None:
    assert different(4, micro_batches, "interleaved", 2) == []


@pytest.mark.case(5)
@pytest.mark.parametrize("schedule", ["interleaved", *V_SHAPED])
def test_messages_to_and_from_one_peer_are_never_mixed_up(schedule: str) -> None:
    assert different(2, 5, schedule, 2) == []
