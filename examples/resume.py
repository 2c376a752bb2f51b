"""Train a small network that goes on where it was, whatever is killed.

    torchrun --nproc-per-node 2 --max-restarts 100 examples/resume.py --folder run --steps 1000

Kill a process at any moment: torchrun starts all of them again, they load the newest checkpoint that is whole, and
the losses are, bit for bit, those of a run that nothing disturbed. The plan lies beside the checkpoints, so that
every start has the same stages; started on fewer processes than it was made for, the script plans again and goes on.
Without torchrun the ranks are threads: two, or as many as --threads says.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import autopipe

WIDTH, BATCH = 32, 16


def build() -> nn.Module:
    pieces = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    return nn.Sequential(*pieces, nn.Linear(WIDTH, 1))


def draw_batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, WIDTH)
    return x, x.square().mean(1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="Plan, checkpoints and losses are kept here.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=10, help="Steps from one checkpoint to the next.")
    parser.add_argument("--threads", type=int, default=2, help="Ranks as threads, without torchrun.")
    parser.add_argument("--budget", type=float, default=5.0, help="Seconds to profile for, at the first start.")
    options = parser.parse_args()
    plan, losses = options.folder / "plan.json", options.folder / "losses.txt"

    torch.manual_seed(0)  # the same weights and the same batches on every rank
    model = build()
    example, target = draw_batch()
    pipe = autopipe.pipeline(
        model,
        plan=plan if plan.exists() else None,
        example=(example,),
        target=target,
        loss_fn=nn.functional.mse_loss,
        batch_size=BATCH,
        ranks=options.threads,
        budget_s=options.budget,
        on_change="replan",
    )
    leads = pipe.rank == 0 and pipe.replica == 0
    if leads and not plan.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        pipe.plan.save(plan)

    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    trained = {"optimizer": optimizer, "scheduler": scheduler}
    pipe.load(options.folder, required=False, **trained)  # the random state too, and with it the next batch
    while pipe.steps < options.steps:
        x, y = draw_batch()
        share = slice(pipe.replica, None, pipe.layout.replicas if pipe.mesh is not None else 1)
        loss = pipe.step(x[share], target=y[share])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if leads:
            with losses.open("a") as file:
                file.write(f"{pipe.steps} {loss.item().hex()}\n")
        if pipe.steps % options.every == 0:
            pipe.save(options.folder, keep=3, in_background=True, **trained)
    pipe.close()


if __name__ == "__main__":
    main()
