"""What is made of little is made again by the stages that read it, and sent where it cannot be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autopipe.recorder import record
from autopipe.stages.boundary import routes
from autopipe.stages.split import split


class Masked(nn.Module):
    """Layers that all read one mask, as attention does."""

    def __init__(self, make_mask: Callable[["Masked", Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.scale = nn.Parameter(torch.ones(()))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.make_mask = make_mask

    def forward(self, tokens: Tensor) -> Tensor:
        mask = self.make_mask(self, tokens)
        x = self.table(tokens)
        for layer in self.layers:
            x = x + mask.softmax(-1) @ layer(x)
        return x


def causal(model: Masked, tokens: Tensor) -> Tensor:
    rows = torch.arange(tokens.size(1))
    return torch.where(rows[:, None] >= rows, 0.0, -1e9).expand(tokens.size(0), -1, -1)


def padded(model: Masked, tokens: Tensor) -> Tensor:
    return torch.where((tokens != 0)[:, None, :], causal(model, tokens), -1e9)


def random(model: Masked, tokens: Tensor) -> Tensor:
    return torch.rand(tokens.size(0), tokens.size(1), tokens.size(1))


def learned(model: Masked, tokens: Tensor) -> Tensor:
    return causal(model, tokens) * model.scale


def frozen(model: Masked, tokens: Tensor) -> Tensor:
    return causal(model, tokens) * model.scale.detach()


def autocast(model: Masked, tokens: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        return causal(model, tokens) * 1.0


def changed(model: Masked, tokens: Tensor) -> Tensor:
    mask = torch.zeros(tokens.size(0), tokens.size(1), tokens.size(1))
    mask[:, 0] = 1.0
    return mask


@pytest.mark.parametrize("make_mask", [causal, padded])
def test_stages_make_a_mask_again_instead_of_receiving_it(make_mask: Callable[[Masked, Tensor], Tensor]) -> None:
    model, tokens = Masked(make_mask), torch.randint(0, 10, (2, 64))
    recording = record(model, (tokens,))
    mask = max(recording.graph.values, key=lambda value: value.bytes if not value.requires_grad else 0)
    assert mask.is_rebuilt
    assert mask.shape == (2, 64, 64)
    bounds = (0, 1, 2, len(recording.graph.layers))
    assert mask.name not in {name for route in routes(recording.graph.values, bounds) for name in route.names}

    batch = torch.randint(0, 10, (3, 64))
    values: dict[str, object] = {}
    for stage in split(recording.module, recording.graph, bounds):
        made = stage.module(*(values[name] for name in stage.inputs) if stage.index else (batch,))
        values.update(zip(stage.outputs, made, strict=True) if not stage.is_last else ())
    expected = model(batch)
    assert torch.equal(made, expected)
    weights = tuple(model.parameters())
    gradients = [torch.autograd.grad(out.sum(), weights, allow_unused=True) for out in (made, expected)]
    assert all(one is other or torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("make_mask", [random, learned, frozen, autocast, changed])
def test_what_other_calls_would_make_otherwise_is_sent(make_mask: Callable[[Masked, Tensor], Tensor]) -> None:
    recording = record(Masked(make_mask), (torch.randint(0, 10, (2, 64)),))
    assert not any(value.is_rebuilt for value in recording.graph.values)


def test_what_is_made_of_as_much_is_sent() -> None:
    recording = record(Masked(padded), (torch.randint(0, 10, (2, 4)),))
    assert not any(value.is_rebuilt for value in recording.graph.values)
