"""A graph holds the numbers that it read of modules: it is refused for a model that has others."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.errors import MismatchError
from autopipe.recorder import rebuild, record


class Block(nn.Module):
    def __init__(self, *, rate: float, slope: float, child_rate: float, eps: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4, eps=eps)
        self.drop = nn.Dropout(child_rate)
        self.rate, self.slope = rate, slope

    def forward(self, x: Tensor) -> Tensor:
        x = functional.leaky_relu(self.norm(self.linear(x)), self.slope)
        x = functional.dropout(x, self.rate, self.training)
        return functional.dropout(x, self.drop.p, self.training)


class Counting(nn.Module):
    """Runs its own code wherever it is called: what it holds is its own affair."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


def build(**settings: float) -> nn.Module:
    return nn.Sequential(Block(**{"rate": 0.1, "slope": 0.2, "child_rate": 0.3, "eps": 1e-5} | settings), Counting())


@pytest.mark.parametrize(
    ("settings", "module"),
    [({"rate": 0.0}, "`0` (Block)"), ({"slope": 0.5}, "`0` (Block)"), ({"child_rate": 0.0}, "`0.drop` (Dropout)")],
)
def test_a_model_with_other_numbers_is_refused_by_its_module(settings: dict[str, float], module: str) -> None:
    graph = record(build(), (torch.randn(2, 4),), check=False).graph
    with pytest.raises(MismatchError) as caught:
        rebuild(build(**settings), graph)
    assert module in str(caught.value)


def test_the_same_model_is_taken_in_either_mode_and_after_calls_of_its_own() -> None:
    model = build()
    graph = record(model, (torch.randn(2, 4),), check=False).graph
    model[1].calls = 7
    rebuild(model.eval(), graph)
