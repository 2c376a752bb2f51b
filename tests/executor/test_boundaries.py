"""What may cross a boundary: any dtype, no tensor at all, what nobody reads, what changes its shape."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.errors import StepError
from autopipe.executor.request import MicroBatches
from autopipe.recorder import record
from tests.executor.pipes import thread_pipe, twins
from tests.reference import differences, even_bounds, plain_step

BATCH = 8


class ManyKinds(nn.Module):
    """Carries ids up to 2**40, masks, bytes, complex and half-precision numbers and a counter past every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, ids: Tensor, flag: str) -> Tensor:
        mask, level = ids % 2 == 0, (ids % 251).to(torch.uint8)
        turn = torch.polar(torch.ones(8), torch.arange(8.0))
        zero = ids.sum() * 0
        half = x.to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x)
            ids = ids + 1
            x = torch.where(mask[:, None], x, -x) + (level[:, None] > 3) * (ids[:, None] > 2**40 - 50)
            x = x + (x * turn).real * 0.5 + half.float() + zero
            half = half * 0.5
        return x if flag == "plain" else -x


@pytest.mark.case(16)
@pytest.mark.parametrize("stages", [2, 4])
def test_numbers_of_every_kind_cross_unchanged(stages: int) -> None:
    model, plain = twins(ManyKinds)
    x, y = torch.randn(2, BATCH, 8)
    ids = torch.randint(2**40 - 100, 2**40, (BATCH,))
    example = (x, ids, "plain")
    graph = record(model, example).graph
    pipe = thread_pipe(model, example, stages=stages, micro_batches=4, loss_fn=functional.mse_loss)
    crossing = {value.dtype for value in graph.values}
    assert crossing >= {"int64", "bool", "uint8", "complex64", "bfloat16", "float32"}
    for _ in range(2):
        loss = pipe.step(x, ids, "plain", target=y)
        wanted = plain_step(
            plain, functional.mse_loss, (x, ids, "plain"), y, 4
        )  # the plain step cuts as the pipeline does
        assert torch.equal(loss, wanted)
    # Every layer reads `half` and others: more than two gradients are added, in another order.
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    pipe.close()


class Sides(nn.Module):
    """Returns a growing tuple: tensors that are read later or never, whole numbers, and None."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.count = count

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = self.linear(x)
        return (y, None, y.argmax(1), y.detach() > 0, y * 2)[: self.count]


class Uneven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleList(Sides(8, count) for count in (5, 1, 3, 2, 4))
        self.table = nn.Embedding(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: list[Any] = []
        for side in self.sides:
            parts = side(x)
            x = parts[0].tanh()
            found.append(parts)
        if found[0][1] is None:
            x = x + self.table(found[0][2])
        return x * found[4][3] + self.table(found[2][2])


@pytest.mark.case(17)
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_stages_with_one_to_five_outputs_some_unused_one_none(stages: int) -> None:
    model, plain = twins(Uneven)
    x, y = torch.randn(2, BATCH, 8)
    for leaf in ((), (Sides,)):
        recording = record(model, (x,), leaf=leaf)
        bounds = even_bounds(len(recording.graph.layers), stages)
        pipe = thread_pipe(model, (x,), stages=stages, micro_batches=4, loss_fn=functional.mse_loss, bounds=bounds)
        model.zero_grad()
        plain.zero_grad()
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
        # The table is read in two layers.
        assert differences(model, plain, {"table.weight"}) == []
        pipe.close()


@dataclasses.dataclass
class Batch:
    """A batch as an object: with values beside tensors, and tensors deep inside."""

    x: Tensor
    extra: dict[str, Any]


@dataclasses.dataclass
class Answer:
    loss: Tensor
    logits: Tensor
    note: str = "fine"


class ObjectsAround(nn.Module):
    """Takes and returns objects, passes objects between its modules, takes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, batch: Batch, labels: Tensor | None = None) -> Answer:
        state = {"x": batch.x, "scale": batch.extra["scale"], "rest": [batch.extra["bias"], None]}
        for layer in self.layers:
            state = {**state, "x": functional.gelu(layer(state["x"])) * state["scale"] + state["rest"][0]}
        logits = state["x"]
        loss = functional.cross_entropy(logits, labels) if labels is not None else logits.mean()
        return Answer(loss=loss, logits=logits)


@pytest.mark.case(21, 26)
def test_objects_go_in_and_out_and_hold_the_loss() -> None:
    model, plain = twins(ObjectsAround)

    def draw() -> tuple[Batch, Tensor]:
        extra = {"scale": 0.5, "bias": torch.randn(BATCH, 8), "name": "b"}
        return Batch(torch.randn(BATCH, 8), extra), torch.randint(0, 8, (BATCH,))

    batch, labels = draw()
    pipe = thread_pipe(model, (batch, labels), stages=3, micro_batches=4)
    for _ in range(2):
        batch, labels = draw()
        loss = pipe.step(batch, labels=labels)
        wanted = plain_step(plain, lambda output, _: output.loss, (batch, labels), None, 4)
        assert torch.equal(loss, wanted)
    assert differences(model, plain, set()) == []
    found, expected = pipe.predict(batch, labels), plain(batch, labels)
    assert type(found) is Answer
    assert torch.allclose(found.logits, expected.logits, atol=1e-6)
    assert torch.allclose(found.loss, expected.loss)
    assert found.note == "fine"
    pipe.close()


def test_a_number_inside_an_object_cannot_change_unnoticed() -> None:
    model, _ = twins(ObjectsAround)
    x, bias, labels = torch.randn(BATCH, 8), torch.zeros(BATCH, 8), torch.randint(0, 8, (BATCH,))
    pipe = thread_pipe(model, (Batch(x, {"scale": 0.5, "bias": bias}), labels), stages=2, micro_batches=2)
    with pytest.raises(StepError, match=r"a value in argument batch is 0\.25.*recorded with 0\.5"):
        pipe.step(Batch(x, {"scale": 0.25, "bias": bias}), labels)
    pipe.close()


class Sequences(nn.Module):
    """A small transformer that takes sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sequence_loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


@pytest.mark.case(22)
def test_lengths_change_from_step_to_step_and_from_micro_batch_to_micro_batch() -> None:
    model, plain = twins(Sequences)
    pipe = thread_pipe(model, (torch.randint(0, 50, (BATCH, 17)),), stages=3, micro_batches=4, loss_fn=sequence_loss)
    for length in (17, 33, 9, 17):
        ids, labels = torch.randint(0, 50, (2, BATCH, length))
        assert torch.equal(pipe.step(ids, target=labels), plain_step(plain, sequence_loss, (ids,), labels, 4))
    for lengths in ((5, 9, 17, 9, 3), (9, 5)):
        pairs = [torch.randint(0, 50, (2, 2, length)) for length in lengths]
        loss = pipe.step(MicroBatches([p[0] for p in pairs]), target=MicroBatches([p[1] for p in pairs]))
        wanted = torch.zeros(())
        for ids, labels in pairs:
            part = sequence_loss(plain(ids), labels) * (len(labels[0]) / sum(lengths))
            part.backward()
            wanted = wanted + part.detach()
        assert torch.equal(loss, wanted)
    assert differences(model, plain, set()) == []
    outputs = pipe.predict(MicroBatches([pairs[0][0], pairs[1][0]]))
    assert [tuple(part.shape) for part in outputs] == [(2, 9, 50), (2, 5, 50)]
    with pytest.raises(StepError, match="one item per micro-batch"):
        pipe.step(MicroBatches([ids]), target=MicroBatches([labels, labels]))
    pipe.close()


class Towers(nn.Module):
    """An encoder whose result every decoder layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, 16), nn.Embedding(50, 16)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(3))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.source(source)
        for block in self.encoder:
            memory = block(memory)
        x = self.target(target)
        for block in self.decoder:
            x = block(x, memory)
        return self.head(x)


@pytest.mark.case(20)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [2, 4])
def test_an_encoders_memory_reaches_every_decoder_stage(stages: int, schedule: str) -> None:
    model, plain = twins(Towers)
    source, target, labels = torch.randint(0, 50, (3, BATCH, 6))
    pipe = thread_pipe(
        model, (source, target), stages=stages, micro_batches=4, loss_fn=sequence_loss, schedule=schedule
    )
    for _ in range(2):
        loss = pipe.step(source, target, target=labels)
        assert torch.equal(loss, plain_step(plain, sequence_loss, (source, target), labels, 4))
    # What leads to the memory is read three times, by decoders on several stages.
    exempted = {name for name, _ in model.named_parameters() if name.startswith(("source", "target", "encoder"))}
    assert differences(model, plain, exempted) == []
    pipe.close()
