"""Train a U-Net to find discs in noise; its skip connections go past stages, straight to the one that reads them.

torchrun --nproc-per-node 2 examples/train_unet.py
python examples/train_unet.py --threads 2
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

import autopipe

SIDE = 32


def convolve(channels: int, wide: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, wide, 3, padding=1), nn.GroupNorm(4, wide), nn.ReLU(inplace=True),
        nn.Conv2d(wide, wide, 3, padding=1), nn.GroupNorm(4, wide), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(convolve(a, b) for a, b in zip([1, *widths[:-2]], widths[:-1], strict=True))
        self.bottom = convolve(widths[-2], widths[-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1])
        self.up = nn.ModuleList(convolve(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([skips.pop(), widen(x)], dim=1))
        return self.head(x)


def draw_batch(batch: int) -> tuple[Tensor, Tensor]:
    """Return pictures (batch, 1, side, side), and where in them the disc is."""
    center = SIDE * (0.2 + 0.6 * torch.rand(2, batch, 1, 1))
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    radius = SIDE * (0.1 + 0.15 * torch.rand(batch, 1, 1))
    mask = ((x - center[0]).square() + (y - center[1]).square() < radius.square()).float().unsqueeze(1)
    return mask + 0.7 * torch.randn(batch, 1, SIDE, SIDE), mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--threads", type=int, help="ranks as threads of this process, in the place of torchrun")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds to profile for")
    options = parser.parse_args()

    torch.manual_seed(0)  # the same weights and the same batches on every rank
    model = UNet(options.width, depth=3)
    pictures, masks = draw_batch(options.batch)
    loss_fn = functional.binary_cross_entropy_with_logits
    pipe = autopipe.pipeline(
        model, example=(pictures,), target=masks, loss_fn=loss_fn, ranks=options.threads, budget_s=options.budget
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for step in range(options.steps):
        pictures, masks = draw_batch(options.batch)
        loss = pipe.step(pictures, target=masks)
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)

    pictures, masks = draw_batch(options.batch)
    found, wanted = pipe.predict(pictures, everywhere=True) > 0, masks > 0
    if pipe.rank == 0:
        print(f"overlap {(found & wanted).sum() / (found | wanted).sum():.1%} of the union of found and true discs")


if __name__ == "__main__":
    main()
