import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from autopipe.executor.entry import Entry
from autopipe.stages.split_backward import input_gradients
from tests.models import Block, Residual


class Twice(nn.Module):
    """Uses one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(self.linear(x)))


class Scaled(nn.Module):
    """Weights that reach the output by functions of their own, and one that meets no input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.shift = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale.exp()) + (self.shift * 2).sin()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight.square()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient * weight.square(), (gradient * x * 2 * weight).sum(0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(torch.relu(x), self.weight)


MODELS = {
    "transformer": (lambda: nn.Sequential(*(Block(64, 4) for _ in range(3))), (2, 16, 64)),
    "convolutions": (lambda: nn.Sequential(Residual(8), Residual(8)), (2, 8, 8, 8)),
    "recurrent": (lambda: nn.GRUCell(4, 4), (3, 4)),
    "a weight used twice": (Twice, (3, 4)),
    "functions of weights": (Scaled, (3, 4)),
    "custom function": (Custom, (3, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_parts_together_give_the_full_backward(name: str) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = build()
    plain = copy.deepcopy(model)
    for _ in range(3):
        x = torch.randn(shape)
        entry = Entry()
        (inside,) = entry.admit([x.clone()])
        output = model(inside)
        gradient = torch.randn_like(output)
        deferred = input_gradients([get_gradient_edge(output)], [gradient], entry.leaves)
        early = entry.gradients[0]
        deferred.run()
        x.requires_grad_()
        plain(x).backward(gradient)
        assert torch.equal(early, x.grad)
    for parameter, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter.grad, wanted.grad)


def test_weights_wait_for_the_second_part() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    entry = Entry()
    (inside,) = entry.admit([torch.randn(2, 4)])
    output = model(inside)
    deferred = input_gradients([get_gradient_edge(output)], [torch.ones_like(output)], entry.leaves)
    assert entry.gradients[0] is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    deferred.run()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_inputs_everything_waits() -> None:
    weight = nn.Parameter(torch.ones(3))
    output = weight * 2
    deferred = input_gradients([get_gradient_edge(output)], [torch.ones(3)], ())
    assert weight.grad is None
    deferred.run()
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_nothing_is_left_of_the_graph_after_the_second_part() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    entry = Entry()
    (inside,) = entry.admit([torch.randn(2, 4)])
    hidden = model[1](model[0](inside))
    output = model[2](hidden)
    alive = weakref.ref(hidden)
    deferred = input_gradients([get_gradient_edge(output)], [torch.ones_like(output)], entry.leaves)
    del hidden, output, inside
    deferred.run()
    gc.disable()
    try:
        assert alive() is None
    finally:
        gc.enable()
