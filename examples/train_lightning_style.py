"""Train with the hooks of a Lightning module, in a loop that is written out: one class says what, `fit` says when.

    torchrun --nproc-per-node 2 examples/train_lightning_style.py

A trainer of Lightning wraps the model for data parallelism, moves the whole of it to each device, and calls `backward`
itself. A pipeline does these three in another way, so that a trainer would have to be kept from each; its hooks fit.
"""

import argparse
import os
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autopipe

Batch = tuple[Tensor, Tensor]


class Classifier:
    """What is trained, how a batch is, and with what optimizer: the hooks that Lightning's users know."""

    def __init__(self, *, threads: int | None) -> None:
        torch.manual_seed(0)
        blocks = (nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4))
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), *blocks, nn.Linear(64, 3))
        self.pipe = autopipe.pipeline(
            model,
            example=(torch.zeros(32, 16),),
            target=torch.zeros(32, dtype=torch.long),
            loss_fn=nn.functional.cross_entropy,
            budget_s=1.0,
            ranks=threads,
        )

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.AdamW(self.pipe.parameters(), lr=3e-3)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def training_step(self, batch: Batch) -> Tensor:
        inputs, labels = batch
        return self.pipe.step(inputs, target=labels)  # forward and backward

    def validation_step(self, batch: Batch) -> Tensor:
        inputs, labels = batch
        return self.pipe.evaluate(inputs, target=labels)


def fit(task: Classifier, training: Iterable[Batch], validation: Iterable[Batch], epochs: int) -> None:
    """Call the hooks, on every rank in the same order."""
    optimizer, scheduler = task.configure_optimizers()
    for epoch in range(epochs):
        task.pipe.train()
        for batch in task.pipe.batches(training):
            loss = task.training_step(batch)
            task.pipe.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        task.pipe.eval()
        losses = [task.validation_step(batch) for batch in task.pipe.batches(validation)]
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} validation {torch.stack(losses).mean().item():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, help="run so many ranks as threads of this process, without torchrun")
    options = parser.parse_args()
    task = Classifier(threads=options.threads)
    inputs = torch.randn(992, 16)
    data = TensorDataset(inputs, inputs[:, :3].argmax(1))
    torch.manual_seed(1)  # the same order on every rank
    training = DataLoader(torch.utils.data.Subset(data, range(800)), batch_size=32, shuffle=True)
    validation = DataLoader(torch.utils.data.Subset(data, range(800, 992)), batch_size=64)
    fit(task, training, validation, options.epochs)
    task.pipe.close()


if __name__ == "__main__":
    main()
