"""Models that were not written here, as their users call them: transformers' GPT-2 and ResNet."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopipe
from autopipe.errors import CaptureError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from tests.reference import differences, even_bounds, exempt

transformers = pytest.importorskip("transformers")

MICRO_BATCHES = 4
BATCH = 8


def gpt2() -> tuple[nn.Module, dict[str, Tensor], set[str]]:
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=32, n_embd=32, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    ids = torch.randint(0, 97, (BATCH, 16))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}, {"transformer.wte.weight"}


def resnet() -> tuple[nn.Module, dict[str, Tensor], set[str]]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], num_labels=5, layer_type="basic"
    )
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 5, (BATCH,))
    return transformers.ResNetForImageClassification(config), {"pixel_values": images, "labels": labels}, set()


def plain_step(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    losses = []
    for i in range(MICRO_BATCHES):
        part = slice(i * BATCH // MICRO_BATCHES, (i + 1) * BATCH // MICRO_BATCHES)
        loss = model(**{name: tensor[part] for name, tensor in inputs.items()}).loss * (1 / MICRO_BATCHES)
        loss.backward()
        losses.append(loss.detach())
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total


@pytest.mark.case(21, 26)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("build", [gpt2, resnet])
def test_a_model_with_its_own_loss_trains_as_it_is(build: Any, stages: int, schedule: str) -> None:
    torch.manual_seed(0)
    model, inputs, tied = build()
    model.train()
    plain = copy.deepcopy(model)
    recording = record(model, (), inputs)
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), stages),
        stage_ranks=tuple(range(stages)),
        schedule=schedule,
        micro_batches=MICRO_BATCHES,
    )
    pipe = Pipeline(recording.module, recording.graph, layout, ranks=stages)
    for _ in range(2):
        assert torch.equal(pipe.step(**inputs), plain_step(plain, inputs))
    exempted = exempt(recording.graph, layout.bounds, layout.stage_ranks)
    assert exempted == tied
    assert differences(model, plain, exempted) == []
    pipe.close()


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.case(20, 21)
def test_an_encoder_and_decoder_is_planned_automatically_and_trains_as_it_is() -> None:
    torch.manual_seed(0)
    model = t5().train()
    plain = copy.deepcopy(model)
    ids, labels = torch.randint(2, 61, (BATCH, 9)), torch.randint(2, 61, (BATCH, 5))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    profile = autopipe.profile(model, inputs, micro_batches=(2,), budget_s=0.2, granularity=8)
    plan = autopipe.partition(
        profile, gpus=3, batch_size=BATCH, micro_batch_size=2, schedule="1f1b", stages=3, time_limit_s=5.0
    )
    pipe = autopipe.pipeline(model, plan=plan)
    assert plan.graph is not None
    exempted = exempt(plan.graph, pipe.layout.bounds, pipe.layout.stage_ranks, model)
    for _ in range(2):
        assert torch.equal(pipe.step(**inputs), plain_step(plain, inputs))
    assert differences(model, plain, exempted) == []
    assert {name for name, _ in model.named_parameters()} > exempted
    pipe.close()


class ReadsAValue(nn.Module):
    """Looks at a tensor's value at its root, where nothing can be kept whole but the model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if y.sum().item() > 0:
            y = y * 2
        return y


def test_a_model_that_reads_a_value_at_its_root_is_refused_with_the_place() -> None:
    with pytest.raises(CaptureError) as caught:
        record(ReadsAValue(), (torch.randn(2, 4),))
    message = str(caught.value)
    assert "ReadsAValue" in message
    assert "test_transformers.py:" in message
    assert "y.sum().item()" in message
    assert "value" in message
