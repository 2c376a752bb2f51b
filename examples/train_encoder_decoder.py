"""Train an encoder-decoder to reverse sequences; the encoder's result goes to every stage with a decoder block.

torchrun --nproc-per-node 2 examples/train_encoder_decoder.py
python examples/train_encoder_decoder.py --threads 2
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

import autopipe

SYMBOLS, START = 32, 0


class EncoderDecoder(nn.Module):
    def __init__(self, width: int, blocks: int, length: int) -> None:
        super().__init__()
        kind = {"nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.symbols = nn.Embedding(SYMBOLS, width)
        nn.init.normal_(self.symbols.weight, std=width**-0.5)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, **kind) for _ in range(blocks))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(width, **kind) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        memory = self.symbols(source) + self.places
        for block in self.encoder:
            memory = block(memory)
        x = self.symbols(written) + self.places
        for block in self.decoder:
            x = block(x, memory, tgt_mask=self.mask, tgt_is_causal=True)
        return functional.linear(self.norm(x), self.symbols.weight)  # one matrix reads and writes symbols


def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def draw_batch(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return sequences, what of their reversal is written already at each place, and what comes there."""
    source = torch.randint(1, SYMBOLS, (batch, length))
    target = source.flip(1)
    return source, functional.pad(target[:, :-1], (1, 0), value=START), target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, help="ranks as threads of this process, in the place of torchrun")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds to profile for")
    options = parser.parse_args()

    torch.manual_seed(0)  # the same weights and the same batches on every rank
    model = EncoderDecoder(options.width, blocks=2, length=options.length)
    source, written, target = draw_batch(options.batch, options.length)
    pipe = autopipe.pipeline(
        model, example=(source, written), target=target, loss_fn=loss_fn, ranks=options.threads, budget_s=options.budget
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for step in range(options.steps):
        source, written, target = draw_batch(options.batch, options.length)
        loss = pipe.step(source, written, target=target)
        pipe.clip_grad_norm_(1.0)  # counts the shared matrix once, wherever it is read
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
