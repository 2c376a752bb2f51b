"""Values that stages make again instead of receiving train to the same numbers, under every kind of schedule."""

import pytest
import torch
from torch import Tensor, nn

from autopipe.recorder import record
from tests.executor.pipes import thread_pipe, twins
from tests.reference import differences, plain_step


class Masked(nn.Module):
    """Attention-like layers that all read one mask, made of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.arange(tokens.size(1), device=tokens.device)
        mask = torch.where((rows[:, None] >= rows) & (tokens != 0)[:, None, :], 0.0, -1e9)
        x = self.table(tokens)
        for layer in self.layers:
            x = x + (mask + x @ x.transpose(1, 2)).softmax(-1) @ layer(x)
        return x


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("zb-h1", 1)])
def test_a_mask_made_in_every_stage_changes_no_number(schedule: str, virtual: int, recompute: bool) -> None:
    model, plain = twins(Masked)
    tokens, target = torch.randint(0, 10, (8, 64)), torch.randn(8, 64, 8)
    pipe = thread_pipe(
        model, (tokens,), stages=2, micro_batches=4, loss_fn=loss_fn, schedule=schedule, virtual=virtual,
        recompute=recompute,
    )  # fmt: skip
    assert any(value.is_rebuilt for value in record(model, (tokens,)).graph.values)
    for _ in range(2):
        assert torch.equal(pipe.step(tokens, target=target), plain_step(plain, loss_fn, (tokens,), target, 4))
    assert differences(model, plain, set()) == []
    pipe.close()
