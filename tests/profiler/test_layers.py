from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopipe.profiler.layers import Chain, Example, Sweep, pieces_of
from autopipe.recorder import record
from tests.models import JOBS


class Log:
    """Writes down what a chain tells it."""

    def __init__(self) -> None:
        self.segments: list[tuple[Sweep, int]] = []
        self.passing: dict[tuple[Sweep, int], set[str]] = {}
        self.names: dict[int, tuple[str, ...]] = {}

    def before(self, sweep: Sweep, index: int, passing: dict[str, Any], received: dict[str, Any]) -> None:
        self.passing[sweep, index] = set(passing)

    def after(self, sweep: Sweep, index: int) -> None:
        self.segments.append((sweep, index))

    def made(self, index: int, values: dict[str, Any]) -> None:
        self.names[index] = tuple(values)


def chain_of(model: nn.Module, inputs: Tensor, loss: Any) -> Chain:
    recording = record(model, (inputs,))
    return Chain(pieces_of(recording.module, recording.graph), loss)


@pytest.mark.parametrize("name", JOBS)
def test_the_chain_gives_the_gradients_of_the_unsplit_model(name: str) -> None:
    job = JOBS[name]
    torch.manual_seed(0)
    model = job.build()
    inputs, target = job.draw(4)
    job.loss(model(inputs), target).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    log = Log()
    chain = chain_of(model, inputs, job.loss)
    chain.step(Example((inputs,), {}, target), log)
    for parameter_name, parameter in model.named_parameters():
        # A parameter of two layers, and a value of two readers, are summed in another order.
        torch.testing.assert_close(parameter.grad, expected[parameter_name], rtol=1e-4, atol=1e-6)
    end = len(chain.pieces)
    forward = [(Sweep.FORWARD, index) for index in range(end + 1)]
    assert log.segments == forward + [(Sweep.BACKWARD, index) for index in reversed(range(end + 1))]


@pytest.mark.parametrize("name", JOBS)
def test_a_split_backward_gives_the_same_gradients_in_two_segments_a_piece(name: str) -> None:
    job = JOBS[name]
    torch.manual_seed(0)
    model = job.build()
    inputs, target = job.draw(4)
    chain = chain_of(model, inputs, job.loss)
    chain.step(Example((inputs,), {}, target), Log())
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    log = Log()
    chain.step(Example((inputs,), {}, target), log, split=True)
    assert all(map(torch.equal, (parameter.grad for parameter in model.parameters()), expected))
    end = len(chain.pieces)
    parts = [(sweep, index) for index in reversed(range(end)) for sweep in (Sweep.INPUT_GRAD, Sweep.WEIGHT_GRAD)]
    assert log.segments[end + 2 :] == parts


def test_skips_pass_the_layers_between() -> None:
    job = JOBS["unet"]
    model = job.build()
    inputs, target = job.draw(2)
    chain = chain_of(model, inputs, job.loss)
    log = Log()
    chain.step(Example((inputs,), {}, target), log)
    readers: dict[str, list[int]] = {}
    for index, piece in enumerate(chain.pieces):
        for name in piece.inputs:
            readers.setdefault(name, []).append(index)
    for index, names in log.names.items():
        for name in names:
            for between in range(index + 1, max(readers.get(name, [0]))):
                assert (name in log.passing[Sweep.FORWARD, between]) == (between not in readers[name])
                assert name in log.passing[Sweep.BACKWARD, between]


class StartsInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.relu(self.first(x)))


def test_a_layer_may_begin_with_an_in_place_operation() -> None:
    torch.manual_seed(0)
    model, inputs = StartsInPlace(), torch.randn(3, 4)
    model(inputs).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    chain_of(model, inputs, lambda output, _: output.sum()).step(Example((inputs,), {}, None), Log())
    assert all(map(torch.equal, (parameter.grad for parameter in model.parameters()), expected))


def test_layers_below_the_first_trained_one_have_no_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    log = Log()
    inputs = torch.randn(3, 4)
    chain_of(model, inputs, lambda output, _: output.sum()).step(Example((inputs,), {}, None), log)
    assert [index for sweep, index in log.segments if sweep is Sweep.BACKWARD] == [3, 2, 1]
