"""Train a byte-level GPT on the source text of the Python standard library, as a pipeline.

    torchrun --nproc-per-node 2 examples/train_gpt.py --steps 100

Nothing in the model knows about the pipeline. Every rank runs this same script; `autopipe.pipeline` records
and profiles the model, plans the stages and gives each rank its own.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import autopipe


class GPT(nn.Module):
    def __init__(self, width: int, blocks: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, 256))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.bytes(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def read_text() -> Tensor:
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in sources)), dtype=torch.uint8)


def draw_batch(text: Tensor, batch: int, context: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - context, (batch, 1))
    window = text[starts + torch.arange(context + 1)].long()
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--plan", help="a plan made before with `autopipe partition`, instead of profiling here")
    parser.add_argument("--save", help="write the trained weights here, under the model's own names")
    options = parser.parse_args()

    torch.manual_seed(0)  # the same weights and the same batches on every rank
    model = GPT(options.width, options.blocks, options.context)
    text = read_text()
    tokens, targets = draw_batch(text, options.batch, options.context)

    if options.plan is not None:
        pipe = autopipe.pipeline(model, plan=options.plan, loss_fn=loss_fn)
    else:
        pipe = autopipe.pipeline(model, example=(tokens,), target=targets, loss_fn=loss_fn, batch_size=options.batch)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)
    for step in range(options.steps):
        tokens, targets = draw_batch(text, options.batch, options.context)
        loss = pipe.step(tokens, target=targets)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and step % 10 == 0:
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)
    if pipe.rank == 0:
        print(f"step {step:4d}  loss {loss:.4f}  ({len(pipe.plan.stages)} stages)", flush=True)
    if options.save is not None:
        pipe.save_full(options.save)


if __name__ == "__main__":
    main()
