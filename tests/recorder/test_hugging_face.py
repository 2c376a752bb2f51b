import pytest
import torch
from torch import nn

from autopipe.documents.files import decode, encode
from autopipe.documents.graph import Graph
from autopipe.recorder import rebuild, record

transformers = pytest.importorskip("transformers")


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).train()


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
    )
    return transformers.ResNetForImageClassification(config).train()


@pytest.mark.parametrize("with_labels", [False, True])
def test_gpt2_is_recorded_down_to_its_projections(with_labels: bool) -> None:
    model, ids = gpt2(), torch.randint(0, 61, (2, 16))
    recording = record(model, (ids,), {"labels": ids} if with_labels else {})
    assert recording.demoted == {}
    assert recording.graph.batch_is_free
    parts = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    names = [layer.name for layer in recording.graph.layers]
    assert names[2:-1] == [f"transformer.h.{block}.{part}" for block in (0, 1) for part in parts]
    module = rebuild(model, decode(encode(recording.graph), Graph))
    other = torch.randint(0, 61, (5, 16))
    arguments = {"labels": other} if with_labels else {}
    for training in (True, False):
        module.train(training)
        results = []
        for callee in (model, module):
            torch.manual_seed(0)
            results.append(
                callee(other, use_cache=False, **arguments) if callee is model else callee(other, **arguments)
            )
        assert type(results[0]) is type(results[1])
        assert torch.equal(results[0].logits, results[1].logits)
        assert not with_labels or torch.equal(results[0].loss, results[1].loss)
    assert model.config.use_cache


def test_gpt2_with_a_padding_mask_is_recorded_on_its_branch_for_compilers() -> None:
    ids, mask = torch.randint(0, 61, (3, 16)), torch.ones(3, 16, dtype=torch.long)
    mask[0, 12:] = 0
    model = gpt2().eval()
    recording = record(model, (ids,), {"attention_mask": mask})
    assert recording.demoted == {}
    whole = torch.ones(4, 16, dtype=torch.long)
    ids = torch.randint(0, 61, (4, 16))
    found = recording.module(ids, attention_mask=whole).logits
    assert torch.allclose(found, model(ids, attention_mask=whole).logits, rtol=1e-4, atol=1e-5)


def test_resnet_is_recorded_down_to_its_convolutions() -> None:
    model, pixels, labels = resnet(), torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    recording = record(model, (pixels,), {"labels": labels})
    assert recording.demoted == {}
    assert sum(".layer." in layer.name for layer in recording.graph.layers) == 6
    pixels, labels = torch.randn(5, 3, 32, 32), torch.randint(0, 5, (5,))
    expected, found = model(pixels, labels=labels), recording.module(pixels, labels=labels)
    assert torch.equal(expected.loss, found.loss)
    assert type(expected) is type(found)
    assert set(recording.module.state_dict()) == set(model.state_dict())
