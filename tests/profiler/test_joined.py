"""The joined step: the gradients are the model's, and every boundary is marked once each way."""

import pytest
import torch
from torch import Tensor, nn

from autopipe.profiler.joined import joined_step
from autopipe.profiler.layers import Example, Piece, Sweep, pieces_of, recomputing
from autopipe.profiler.timer import HostClock
from autopipe.recorder import record
from tests.models import JOBS


class Counter:
    """A clock that shows how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.reads


def pieces(model: nn.Module, inputs: Tensor) -> tuple[Piece, ...]:
    recording = record(model, (inputs,))
    return pieces_of(recording.module, recording.graph)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_those_of_the_unsplit_model_bit_for_bit(name: str, recompute: bool) -> None:
    job = JOBS[name]
    torch.manual_seed(0)
    model = job.build()
    inputs, target = job.draw(4)
    job.loss(model(inputs), target).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    recording = record(model, (inputs,))
    parts = pieces_of(recording.module, recording.graph)
    if recompute:
        parts = recomputing(recording.module, recording.graph, parts, range(len(parts)))
    model.zero_grad()
    joined_step(parts, job.loss, Example((inputs,), {}, target), HostClock("count", Counter()))
    assert all(map(torch.equal, (parameter.grad for parameter in model.parameters()), expected))


@pytest.mark.parametrize("name", JOBS)
def test_every_piece_has_a_forward_and_a_backward_in_order(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(2)
    parts = pieces(model, inputs)
    marks = joined_step(parts, job.loss, Example((inputs,), {}, target), HostClock("count", Counter()))
    forward = [index for sweep, index, _, _ in marks.spans if sweep is Sweep.FORWARD]
    backward = [index for sweep, index, _, _ in marks.spans if sweep is Sweep.BACKWARD]
    assert forward == list(range(len(parts) + 1))
    # A piece with two outputs is met twice; the first time comes in order.
    assert list(dict.fromkeys(backward)) == list(reversed(forward))
    assert all(begin < end for _, _, begin, end in marks.spans)


def test_a_frozen_piece_has_no_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    inputs = torch.randn(2, 4)
    example = Example((inputs,), {}, None)
    marks = joined_step(pieces(model, inputs), lambda output, _: output.sum(), example, HostClock("count", Counter()))
    assert [index for sweep, index, _, _ in marks.spans if sweep is Sweep.BACKWARD] == [3, 2, 1]


class AddsInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


def test_what_a_piece_writes_in_place_and_passes_on_is_marked_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), AddsInPlace(), nn.Linear(4, 4))
    inputs = torch.randn(2, 4)
    parts = pieces(model, inputs)
    marks = joined_step(
        parts, lambda output, _: output.sum(), Example((inputs,), {}, None), HostClock("count", Counter())
    )
    assert {index for sweep, index, _, _ in marks.spans if sweep is Sweep.BACKWARD} == set(range(len(parts) + 1))
