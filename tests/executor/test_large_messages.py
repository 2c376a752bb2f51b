"""Large tensors cross both ways at once, and no rank waits for another that waits for it."""

import copy

import pytest
import torch
from torch import Tensor, nn

from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from tests.processes import ProcessPool
from tests.reference import differences, plain_step

NUMBERS = 2**24  # 64 MB in float32


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def mean_of(output: Tensor, target: Tensor) -> Tensor:
    return output.mean() - target.mean()


def crossing(rank: int) -> list[str]:
    model = nn.Sequential(Scale(), Scale())
    plain = copy.deepcopy(model)
    recording = record(model, (torch.ones(1, 4),))
    layout = Layout(bounds=(0, 1, 2), stage_ranks=(0, 1), schedule="1f1b", micro_batches=4)
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=mean_of)
    x, y = torch.full((4, NUMBERS), 0.5), torch.zeros(4, 1)
    loss = pipe.step(x, target=y)
    found = [] if torch.equal(loss, plain_step(plain, mean_of, (x,), y, 4)) else [f"loss {loss}"]
    mine = {name for name, _ in pipe.named_parameters()}
    pipe.close()
    return found + [name for name in differences(model, plain, set()) if name in mine]


@pytest.mark.case(3)
def test_large_tensors_cross_both_ways_at_once(processes: ProcessPool) -> None:
    assert processes.run(crossing, 2) == [[], []]
