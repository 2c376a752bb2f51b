import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from autopipe.errors import CaptureError
from autopipe.recorder import record
from autopipe.recorder.snapshot import preserved
from tests.models import JOBS
from tests.recorder import awkward


def image(model: nn.Module) -> tuple[Any, ...]:
    """Return everything that recording could leave a trace in."""
    state = {
        name: (id(tensor), tensor.detach().clone().tolist(), tensor.requires_grad, tensor.grad is None)
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    attributes = [
        {name: (id(value), list(value) if isinstance(value, (dict, list)) else None) for name, value in vars(m).items()}
        for m in model.modules()
    ]
    return state, attributes, torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()


@pytest.mark.parametrize("name", JOBS)
def test_recording_leaves_no_trace(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(2)
    job.loss(model(inputs), target).backward()
    before = image(model)
    record(model, (inputs,))
    assert image(model) == before


@pytest.mark.parametrize(
    "middle",
    [awkward.Counts, awkward.MakesModules, awkward.RebindsBuffer, awkward.WritesBuffer, awkward.CalledTwice],
)
def test_recording_a_model_with_state_of_its_own_leaves_no_trace(middle: type[nn.Module]) -> None:
    model, x = awkward.Pair(middle()), torch.randn(3, 4)
    before = image(model)
    record(model, (x,))
    assert image(model) == before


def test_refused_recording_leaves_no_trace() -> None:
    model, x = awkward.Counts(), torch.randn(3, 4)
    before = image(model)
    call = nn.Module.__call__
    with pytest.raises(CaptureError):
        record(model, (x,))
    assert image(model) == before
    assert nn.Module.__call__ is call


def test_failing_model_leaves_no_trace_and_its_own_error() -> None:
    class Fails(awkward.Counts):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(f"call {super().forward(x).sum()}")

    model, x = Fails(), torch.randn(3, 4)
    before = image(model)
    call, is_compiling = nn.Module.__call__, torch.compiler.is_compiling
    with pytest.raises(RuntimeError, match="call"):
        record(model, (x,))
    assert image(model) == before
    assert (nn.Module.__call__, torch.compiler.is_compiling) == (call, is_compiling)
    assert torch.overrides._get_current_function_mode() is None


def test_whatever_runs_inside_is_put_back() -> None:
    model = awkward.Pair(nn.BatchNorm1d(4))
    model.history = [1]
    before = image(model)
    with preserved(model):
        torch.randn(3)
        random.random()
        numpy.random.rand()
        model.history.append(2)
        model.extra = 3
        model.middle.register_forward_hook(lambda *_: None)
        model.first.weight.data.zero_()
        model.first.weight.requires_grad_(False)
        model(torch.randn(3, 4)).sum().backward()
        model.eval()
    assert image(model) == before


def test_inputs_are_left_as_they_were() -> None:
    class WritesInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x[:, 0] = 0.0
            return self.linear(x)

    x = torch.ones(3, 4)
    record(WritesInput(), (x,))
    assert torch.equal(x, torch.ones(3, 4))
