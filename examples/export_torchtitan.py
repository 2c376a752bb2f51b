"""Let autopipe choose the stages, and torchtitan train them: writes the settings that torchtitan takes.

    python examples/export_torchtitan.py --gpus 4 -o titan

The model has the names of torchtitan's Llama, and no memory: the plan is for GPUs that are not at hand. A schedule that
torchtitan has no name for goes into a table beside the settings.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import autopipe
from autopipe.exporters.named import export
from autopipe.units import format_time


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.wo = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.w1, self.w3 = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.w2 = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(attended.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleDict({str(number): Block(width, heads) for number in range(blocks)})
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x)
        return self.output(self.norm(x))


def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--device", default="h100-sxm", help="a name of the catalogue, or a JSON file")
    parser.add_argument("-o", "--output", type=Path, default=Path("titan"), help="the folder to write into")
    options = parser.parse_args()

    with torch.device("meta"):
        model = Llama(128256, options.width, options.blocks, heads=options.width // 128).to(torch.bfloat16)
        tokens = torch.zeros(2, 2048, dtype=torch.int64)
    profile = autopipe.profile(
        model,
        (tokens,),
        target=tokens,
        loss_fn=loss_fn,
        device=options.device,
        micro_batches=(1, 2),
        granularity=options.blocks,
    )
    plan = autopipe.partition(profile, gpus=options.gpus, batch_size=options.batch, stages=options.gpus)
    result = export(plan, "torchtitan", profile=profile)
    options.output.mkdir(parents=True, exist_ok=True)
    for file in result.files:
        (options.output / file.name).write_text(file.text)
        print(f"written to {options.output / file.name}")
    print(f"predicted step {format_time(result.step_ns)}; with autopipe's own executor {format_time(plan.step_ns)}")
    for note in result.notes:
        print(f"- {note}")


if __name__ == "__main__":
    main()
