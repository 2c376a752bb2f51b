"""A GPT of any width, built on the meta device, recorded there, and cut into stages of about equal weight."""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[3]))

from autopipe.executor.layout import Layout
from autopipe.recorder import Recording, record
from tests.models import GPT

BLOCKS, VOCABULARY, CONTEXT = 36, 50_304, 64


def gpt(*, width: int, blocks: int = BLOCKS, vocabulary: int = VOCABULARY) -> GPT:
    return GPT(vocabulary, width, blocks, CONTEXT, tied=False)


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def recorded_on_meta(ids: Tensor, *, dtype: torch.dtype, **sizes: int) -> tuple[GPT, Recording]:
    """Return the model without memory, and its record."""
    with torch.device("meta"):
        model = gpt(**sizes).to(dtype)
    return model, record(model, (ids,))


def layout_of(recording: Recording, ranks: int, micro_batches: int) -> Layout:
    """Return stages whose parameters weigh about the same."""
    layers = recording.graph.layers
    bytes_of = {parameter.name: parameter.bytes for parameter in recording.graph.parameters}
    weights = [sum(bytes_of[name] for name in layer.parameters) for layer in layers]
    bounds, passed = [0], 0.0
    for index, weight in enumerate(weights):
        passed += weight
        if len(bounds) < ranks and passed >= sum(weights) * len(bounds) / ranks:
            bounds.append(index + 1)
    return Layout(
        bounds=(*bounds, len(layers)), stage_ranks=tuple(range(ranks)), schedule="1f1b", micro_batches=micro_batches
    )
