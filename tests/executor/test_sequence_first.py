"""A batch in another dimension than the first is found by running parts of it, or given, and cut and joined there."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopipe
from autopipe.errors import InputError
from autopipe.executor.microbatch import micro_batch_sizes
from autopipe.executor.pipeline import Pipeline
from tests.executor.pipes import thread_pipe
from tests.models import token_loss
from tests.reference import differences

SOURCE, TARGET, BATCH = 7, 5, 6


class Translator(nn.Module):
    """torch's own encoder-decoder over (time, batch), with the masks that its users pass."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(31, 16)
        self.body = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=False)
        self.head = nn.Linear(16, 31)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor, padding: Tensor) -> Tensor:
        memory = self.body.encoder(self.tokens(source), src_key_padding_mask=padding)
        decoded = self.body.decoder(self.tokens(target), memory, tgt_mask=mask, memory_key_padding_mask=padding)
        return self.head(decoded)


def draw(batch: int, source: int = SOURCE, target: int = TARGET) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return sources (S, N), targets (T, N), a mask (T, T), padding (N, S); and what is to come, (T, N)."""
    padding = torch.arange(source) >= torch.randint(2, source + 1, (batch, 1))
    mask = torch.triu(torch.full((target, target), float("-inf")), 1)
    inputs = (torch.randint(0, 31, (source, batch)), torch.randint(0, 31, (target, batch)), mask, padding)
    return inputs, torch.randint(0, 31, (target, batch))


@functools.cache
def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = Translator()
    return model, copy.deepcopy(model)


def plain_parts(plain: nn.Module, inputs: tuple[Tensor, ...], micro_batches: int) -> list[Tensor]:
    sizes = micro_batch_sizes(inputs[0].shape[1], micro_batches)
    columns = zip(*(value.split(sizes, 0 if i == 3 else 1) for i, value in enumerate(inputs) if i != 2), strict=True)
    return [plain(source, target, inputs[2], padding) for source, target, padding in columns]


@pytest.mark.parametrize(("source", "target", "batch"), [(7, 5, 6), (6, 6, 6), (4, 4, 1)])
def test_the_dimension_is_found_also_where_sizes_are_equal(source: int, target: int, batch: int) -> None:
    graph = autopipe.capture(models()[0], draw(batch, source, target)[0])
    assert graph.batch_dims == {"source": 1, "target": 1}
    assert graph.whole_inputs == ("mask",)
    assert graph.output_dim == 1


class Attention(nn.Module):
    """Attention over (batch, time, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.inside(x, x, x, attn_mask=mask, need_weights=False)[0]


def test_a_model_over_batches_of_sequences_keeps_its_first_dimension() -> None:
    for inputs in ((torch.randn(4, 4, 8),), (torch.randn(4, 4, 8), torch.rand(4, 4))):
        graph = autopipe.capture(Attention(), inputs)
        assert (graph.batch_dims, graph.output_dim) == ({}, 0)
    assert graph.whole_inputs == ("mask",)


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    model, _ = models()
    return thread_pipe(model, draw(BATCH)[0], stages=3, micro_batches=4, loss_fn=token_loss)


def test_training_equals_the_plain_model(pipe: Pipeline) -> None:
    model, plain = models()
    for batch in (6, 4, 9, 3):  # with uneven micro-batches, and a short last batch
        inputs, wanted = draw(batch)
        loss = pipe.step(*inputs, target=wanted)
        total = torch.zeros(())
        labels = wanted.split(micro_batch_sizes(batch, 4), 1)
        for output, part in zip(plain_parts(plain, inputs, 4), labels, strict=True):
            own = token_loss(output, part) * (part.shape[1] / batch)
            own.backward()
            total = total + own.detach()
        assert torch.equal(loss, total)
        assert differences(model, plain, {name for name, _ in plain.named_parameters()}) == []


def test_outputs_are_joined_where_the_samples_are(pipe: Pipeline) -> None:
    # With 4 micro-batches of 5 samples each, the micro-batch is as large as the sequence is long.
    inputs, wanted = draw(20)
    with torch.no_grad():
        expected = torch.cat(plain_parts(models()[1].eval(), inputs, 4), 1)
    assert torch.equal(pipe.eval().predict(*inputs), expected)
    assert pipe.evaluate(*inputs, target=wanted).isfinite()
    pipe.train()


def test_targets_that_could_be_cut_in_two_ways_are_refused_until_it_is_said(pipe: Pipeline) -> None:
    inputs, wanted = draw(5)
    with pytest.raises(
        autopipe.StepError, match=r"shape \(5, 5\) could carry the 5 samples in dimension 0.*target_dim="
    ):
        pipe.step(*inputs, target=wanted)
    pipe.reset()


def given(target_dim: int) -> Any:
    model, _ = models()
    inputs, wanted = draw(5)
    return autopipe.pipeline(
        copy.deepcopy(model),
        example=inputs,
        target=wanted if target_dim else wanted.t(),
        loss_fn=token_loss if target_dim else lambda logits, labels: token_loss(logits.transpose(0, 1), labels),
        batch_dims={"mask": None},
        target_dim=target_dim,
        budget_s=0.1,
        ranks=2,
    ), (inputs, wanted if target_dim else wanted.t())


@pytest.mark.parametrize("target_dim", [0, 1])
def test_a_dimension_that_is_given_is_used(target_dim: int) -> None:
    pipe, (inputs, wanted) = given(target_dim)
    loss = pipe.step(*inputs, target=wanted)
    output = models()[1].train()(*inputs)
    expected = token_loss(output if target_dim else output.transpose(0, 1), wanted)
    assert torch.allclose(loss, expected)
    pipe.close()


def test_what_is_not_an_argument_cannot_be_given() -> None:
    model, _ = models()
    with pytest.raises(InputError, match="names memory, and the example has source, target, mask, padding"):
        autopipe.capture(model, draw(3)[0], batch_dims={"memory": 1})
    with pytest.raises(InputError, match="dimension 5 of source, which has none such"):
        autopipe.capture(model, draw(3)[0], batch_dims={"source": 5})
