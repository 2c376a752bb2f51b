"""The small models that the tests train: an MLP, a GPT, a residual CNN, a U-Net, each with data and a loss."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Job(NamedTuple):
    """A model with a way to draw a batch of inputs and targets, and its loss."""

    build: Callable[[], nn.Module]
    draw: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


def mlp() -> nn.Module:
    return nn.Sequential(*(module for _ in range(6) for module in (nn.Linear(64, 64), nn.ReLU())))


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
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT whose head shares its weight with the token embedding."""

    def __init__(self, vocabulary: int = 97, width: int = 64, blocks: int = 4, context: int = 16, tied: bool = True):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        position = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(position)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + x)


class CNN(nn.Module):
    """A residual CNN with BatchNorm and in-place activations."""

    def __init__(self, channels: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x), inplace=True)
        return self.head(self.blocks(x).mean(dim=(2, 3)))


class UNet(nn.Module):
    """A U-Net whose skips cross up to five layers, so that they pass over whole stages."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(3, channels, 3, padding=1)
        self.down2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.down3 = nn.Conv2d(2 * channels, 4 * channels, 3, padding=1)
        self.middle = nn.Conv2d(4 * channels, 4 * channels, 3, padding=1)
        self.up3 = nn.Conv2d(8 * channels, 2 * channels, 3, padding=1)
        self.up2 = nn.Conv2d(4 * channels, channels, 3, padding=1)
        self.up1 = nn.Conv2d(2 * channels, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = functional.relu(self.down1(x))
        b = functional.relu(self.down2(functional.max_pool2d(a, 2)))
        c = functional.relu(self.down3(functional.max_pool2d(b, 2)))
        y = functional.relu(self.middle(c))
        y = functional.interpolate(functional.relu(self.up3(torch.cat((y, c), 1))), scale_factor=2.0)
        y = functional.interpolate(functional.relu(self.up2(torch.cat((y, b), 1))), scale_factor=2.0)
        return self.up1(torch.cat((y, a), 1))


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _tokens(batch: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 97, (batch, 17))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


JOBS = {
    "mlp": Job(mlp, lambda batch: (torch.randn(batch, 64), torch.randn(batch, 64)), functional.mse_loss),
    "gpt": Job(GPT, _tokens, token_loss),
    "cnn": Job(
        CNN, lambda batch: (torch.randn(batch, 3, 8, 8), torch.randint(0, 10, (batch,))), functional.cross_entropy
    ),
    "unet": Job(
        UNet, lambda batch: (torch.randn(batch, 3, 16, 16), torch.randn(batch, 3, 16, 16)), functional.mse_loss
    ),
}
