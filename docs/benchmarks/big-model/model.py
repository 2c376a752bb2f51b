"""A GPT of any width, built on the meta device, recorded there, and cut into stages of about equal weight."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.executor.build import Layout
from autopipe.recorder import Recording, record

BLOCKS, VOCABULARY, CONTEXT = 36, 50_304, 64


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            t.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, *, width: int, blocks: int = BLOCKS, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def recorded_on_meta(ids: Tensor, *, dtype: torch.dtype, **sizes: int) -> tuple[GPT, Recording]:
    """Return the model without memory, and its record."""
    with torch.device("meta"):
        model = GPT(**sizes).to(dtype)
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
