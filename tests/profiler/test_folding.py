"""Folded chains: few repeats stand for many, with every figure of the whole chain."""

import pytest
import torch
from torch import Tensor, nn

from autopipe.profiler.folding import Run, fold, likeness, longest_run
from autopipe.profiler.footprint import measure_footprint
from autopipe.profiler.layers import Chain, Example, pieces_of
from autopipe.recorder import record
from tests.models import CNN, GPT, token_loss


@pytest.mark.parametrize(
    ("alike", "run"),
    [
        ([0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3], Run(1, 2, 5)),
        ([0] * 9, Run(0, 1, 9)),
        ([0, 1, 2, 1, 2, 1, 2, 1, 2, 3], None),
        ([0, 1, 2, 3, 4, 5], None),
        ([7, 0, 0, 0, 0, 0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 8], Run(6, 2, 6)),
    ],
)
def test_the_repetition_that_saves_most_is_found(alike: list[int], run: Run | None) -> None:
    assert longest_run(alike) == run


class Skips(nn.Module):
    """Blocks of which each reads the first one's input, and the end every block's output."""

    def __init__(self, *, far: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.far = far

    def forward(self, x: Tensor) -> Tensor:
        start = torch.tanh(x)
        y, seen = start, []
        for block in self.blocks:
            y = torch.relu(block(y) + start)
            seen.append(y)
        return sum(seen) if self.far else y


def mean_square(output: Tensor, target: object) -> Tensor:
    return output.square().mean()


def tokens_loss(output: Tensor, target: Tensor) -> Tensor:
    return token_loss(output, target)


CASES = {
    "gpt": (lambda: GPT(blocks=7), torch.randint(0, 97, (2, 16)), torch.randint(0, 97, (2, 16)), True),
    "cnn": (lambda: CNN(blocks=7), torch.randn(2, 3, 8, 8), None, True),
    "skip": (lambda: Skips(far=False), torch.randn(4, 8), None, True),
    "far skips": (lambda: Skips(far=True), torch.randn(4, 8), None, False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_folded_chain_has_the_figures_of_the_whole_one(name: str) -> None:
    build, inputs, target, folds = CASES[name]
    model = build()
    recording = record(model, (inputs,))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pieces = pieces_of(recording.module, recording.graph)
    loss = mean_square if target is None else tokens_loss
    folding = fold(pieces, likeness(pieces, recording.graph))
    assert (len(folding.folded) < len(pieces)) == folds
    example = Example((inputs,), {}, target)
    whole = measure_footprint(Chain(pieces, loss), example, model)
    assert folding.unfolded(measure_footprint(Chain(folding.folded, loss), example, model)) == whole
