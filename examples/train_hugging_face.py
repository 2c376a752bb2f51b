"""Train a Hugging Face model with the loss that it takes itself, on sentences of unequal length.

    torchrun --nproc-per-node 2 examples/train_hugging_face.py
    python examples/train_hugging_face.py --threads 2

The last tokens of short sentences are padding: their label is -100. The model's loss is a mean over the labels that
count, and how many do differs from micro-batch to micro-batch; ``weight=`` says which.
"""

import argparse

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import autopipe

WORDS = 96


def draw_batch(sentences: int, length: int) -> dict[str, Tensor]:
    """Return counting sentences (7 8 9 ...) of random lengths, padded."""
    starts = torch.randint(1, WORDS - length, (sentences, 1))
    ids = starts + torch.arange(length)
    ends = torch.randint(length // 2, length + 1, (sentences, 1))
    is_padding = torch.arange(length) >= ends
    return {
        "input_ids": ids.masked_fill(is_padding, 0),
        "attention_mask": (~is_padding).long(),
        "labels": ids.masked_fill(is_padding, -100),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--threads", type=int, help="ranks as threads of this process, in the place of torchrun")
    options = parser.parse_args()

    torch.manual_seed(0)  # the same weights and the same batches on every rank
    config = GPT2Config(vocab_size=WORDS, n_positions=options.length, n_embd=64, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)
    example = draw_batch(options.batch, options.length)
    pipe = autopipe.pipeline(model, example=example, batch_size=options.batch, ranks=options.threads, budget_s=2)

    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps)
    for step in range(options.steps):
        batch = draw_batch(options.batch, options.length)
        loss = pipe.step(**batch, weight=batch["labels"][:, 1:] != -100)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and step % 20 == 0:
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)

    pipe.eval()
    batch = draw_batch(options.batch, options.length)
    loss = pipe.evaluate(**batch, weight=batch["labels"][:, 1:] != -100)
    logits = pipe.predict(**batch, everywhere=True).logits[:, :-1]
    counts = batch["labels"][:, 1:] != -100
    right = (logits.argmax(2) == batch["labels"][:, 1:])[counts].float().mean()
    if pipe.rank == 0:
        print(f"evaluated: loss {loss:.4f}, {right:.1%} of the next words right", flush=True)


if __name__ == "__main__":
    main()
