"""The demo's model: a byte-level GPT of four million parameters whose head is heavier than a block."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
WIDTH = 256
HEADS = 4
BLOCKS = 4
CONTEXT = 64
HEAD_FACTOR = 8
LEARNING_RATE = 1e-3


class Block(nn.Module):
    """Causal attention and a feed-forward part, each with its norm and its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape, (batch, time, width)."""
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, time, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class ByteGPT(nn.Module):
    """Predicts the next byte; its head is a hidden layer of eight times the width, so that layers are uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head_up = nn.Linear(WIDTH, HEAD_FACTOR * WIDTH)
        self.head_down = nn.Linear(HEAD_FACTOR * WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (batch, time, 256) for byte values (batch, time)."""
        position = torch.arange(ids.shape[1], device=ids.device)
        x = self.bytes(ids) + self.positions(position)
        for block in self.blocks:
            x = block(x)
        return self.head_down(functional.gelu(self.head_up(self.norm(x))))


def build(seed: int = 0) -> ByteGPT:
    """Return the model with the weights of ``seed``; the caller's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ByteGPT()


def next_byte_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy of ``logits`` (batch, time, 256) against ``target`` (batch, time)."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
