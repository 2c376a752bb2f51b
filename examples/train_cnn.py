"""Train a small residual network with BatchNorm on striped pictures, from a DataLoader whose last batch is short.

    torchrun --nproc-per-node 2 examples/train_cnn.py
    python examples/train_cnn.py --threads 2

The class of a picture is the direction of its stripes. Running statistics are those of a plain run over the same
micro-batches, and the short batch needs nothing special.
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autopipe

CLASSES, SIDE = 4, 24


class Block(nn.Module):
    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wide))
        self.second = nn.Sequential(nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide))
        self.shortcut = nn.Conv2d(narrow, wide, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def build(width: int = 16) -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    blocks = [Block(width, 2 * width), Block(2 * width, 2 * width), Block(2 * width, 4 * width)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))


def draw_pictures(count: int) -> TensorDataset:
    labels = torch.randint(CLASSES, (count,))
    angles = (labels * math.pi / CLASSES).view(-1, 1, 1)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = torch.sin(x * angles.cos() + y * angles.sin() + 2 * math.pi * torch.rand(count, 1, 1))
    return TensorDataset((stripes + 0.5 * torch.randn(count, SIDE, SIDE)).unsqueeze(1), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, help="ranks as threads of this process, in the place of torchrun")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds to profile for")
    options = parser.parse_args()

    torch.manual_seed(0)  # the same weights, pictures and order on every rank
    model = build()
    loader = DataLoader(draw_pictures(options.pictures), options.batch, shuffle=True)
    images, labels = next(iter(loader))
    pipe = autopipe.pipeline(
        model,
        example=(images,),
        target=labels,
        loss_fn=nn.CrossEntropyLoss(),
        batch_size=options.batch,
        ranks=options.threads,
        budget_s=options.budget,
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        pipe.train()
        total = torch.zeros(())
        for images, labels in loader:
            total += len(images) * pipe.step(images, target=labels)
            optimizer.step()
            optimizer.zero_grad()
        if pipe.rank == 0:
            print(f"epoch {epoch}  loss {total / options.pictures:.4f}", flush=True)

    pipe.eval()
    images, labels = draw_pictures(256).tensors
    right = (pipe.predict(images, everywhere=True).argmax(1) == labels).float().mean()
    if pipe.rank == 0:
        print(f"{right:.1%} of 256 new pictures right", flush=True)


if __name__ == "__main__":
    main()
