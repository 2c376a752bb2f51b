"""The four models that are profiled and trained here: a GPT, a residual CNN, an encoder-decoder and a U-Net.

Their layers are blocks of unlike weight: 12 to 17 at depth 1, 23 to 29 at depth 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel
from transformers.models.bart.modeling_bart import BartDecoderLayer, BartEncoderLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

import autopipe
from autopipe.documents.profile import Profile

WORDS, TOKENS = 32_768, 48
FEWER_WORDS, SENTENCE = 8_192, 40


class Subject(NamedTuple):
    """A model, what is kept whole as one layer, its batches (arguments and target) and its loss."""

    build: Callable[[int], nn.Module]
    leaf: tuple[Any, ...]
    draw: Callable[[int], tuple[dict[str, Tensor], Any]]
    loss: Callable[[Any, Any], Tensor] | None


class Residual(nn.Module):
    """Two convolutions and a way around them, a new one where the stride or the channels change."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.short = nn.Conv2d(inputs, channels, 1, stride, bias=False) if inputs != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


class Convolutions(nn.Module):
    """Two convolutions of a level of a U-Net."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """A U-Net of four levels; the skip of each crosses all that lies between."""

    def __init__(self, depth: int, channels: int = 16) -> None:
        super().__init__()
        sizes = [channels * 2**level for level in range(4)]
        below = [sizes[-1], *sizes[:0:-1]]
        self.down = nn.ModuleList(_level(a, b, depth) for a, b in zip([3, *sizes], sizes, strict=False))
        self.middle = nn.ModuleList(Convolutions(sizes[-1], sizes[-1]) for _ in range(3 * depth))
        self.up = nn.ModuleList(_level(a + b, b, depth) for a, b in zip(below, sizes[::-1], strict=True))
        self.out = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            for block in level:
                x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        for block in self.middle:
            x = block(x)
        for level in self.up:
            x = torch.cat((functional.interpolate(x, scale_factor=2.0), skips.pop()), 1)
            for block in level:
                x = block(x)
        return self.out(x)


def _level(inputs: int, channels: int, depth: int) -> nn.ModuleList:
    return nn.ModuleList(Convolutions(channels if block else inputs, channels) for block in range(depth))


def gpt(depth: int) -> nn.Module:
    """Ten (times ``depth``) blocks of width 192 and a head of 32,768 words."""
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"vocab_size": WORDS, "n_positions": TOKENS, "n_embd": 192, "n_layer": 10 * depth, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, **still, use_cache=False, tie_word_embeddings=False))


def cnn(depth: int) -> nn.Module:
    """A residual network: few blocks on large pictures, many on small ones."""
    stem = nn.Sequential(nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
    early = [Residual(24, 24) for _ in range(3 * depth)]
    late = [Residual(24, 48, 2), *(Residual(48, 48) for _ in range(4 * depth - 1))]
    late += [Residual(48, 96, 2), *(Residual(96, 96) for _ in range(5 * depth - 1))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))
    return nn.Sequential(stem, *early, *late, head)


def encoder_decoder(depth: int) -> nn.Module:
    """BART: six (times ``depth``) encoder layers, whose result each of as many decoder layers reads."""
    sizes = {"d_model": 192, "encoder_layers": 6 * depth, "decoder_layers": 6 * depth, "vocab_size": FEWER_WORDS}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 4, f"{side}_ffn_dim": 768}
    still = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    return BartForConditionalGeneration(BartConfig(max_position_embeddings=64, use_cache=False, **sizes, **still))


def _words(batch: int) -> tuple[dict[str, Tensor], None]:
    ids = torch.randint(0, WORDS, (batch, TOKENS))
    return {"input_ids": ids, "labels": ids}, None


def _sentences(batch: int) -> tuple[dict[str, Tensor], None]:
    source, target = torch.randint(4, FEWER_WORDS, (2, batch, SENTENCE))
    return {"input_ids": source, "labels": target}, None


def _classified(batch: int) -> tuple[dict[str, Tensor], Tensor]:
    return {"input": torch.randn(batch, 3, 40, 40)}, torch.randint(0, 10, (batch,))


def _segmented(batch: int) -> tuple[dict[str, Tensor], Tensor]:
    return {"x": torch.randn(batch, 3, 64, 64)}, torch.randint(0, 4, (batch, 64, 64))


SUBJECTS = {
    "gpt": Subject(gpt, (GPT2Block,), _words, None),
    "cnn": Subject(cnn, (Residual, nn.Sequential), _classified, functional.cross_entropy),
    "encoder-decoder": Subject(encoder_decoder, (BartEncoderLayer, BartDecoderLayer), _sentences, None),
    "unet": Subject(UNet, (Convolutions,), _segmented, functional.cross_entropy),
}


def build(name: str, depth: int = 1) -> nn.Module:
    """Return a model with the same weights on every rank."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    return SUBJECTS[name].build(depth)


def profiled(name: str, model: nn.Module, budget_s: float) -> Profile:
    """Return the profile of a model at micro-batches of 1, 2 and 4 samples, blocks kept whole."""
    subject = SUBJECTS[name]
    example, target = subject.draw(4)
    return autopipe.profile(
        model,
        example,
        target=target,
        loss_fn=subject.loss,
        leaf=subject.leaf,
        micro_batches=(1, 2, 4),
        budget_s=budget_s,
    )
