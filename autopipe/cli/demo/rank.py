"""One rank of the demo: torchrun starts it twice, it trains its stages and writes down what it saw."""

import sys
import time
from pathlib import Path

import msgspec
import torch
from torch import Tensor

import autopipe
from autopipe.cli.demo.model import CONTEXT, LEARNING_RATE, build, next_byte_loss
from autopipe.cli.demo.text import draw_batch, read_text
from autopipe.cli.observed import UsageMeter, counted_peak, median_step, with_optimizer
from autopipe.documents.files import save
from autopipe.documents.timeline import Timeline

WARM_UP = 3
PLAN, TIMELINE = "plan.json", "timeline.json"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told: where the files are, how long to train, and how many samples a step has."""

    folder: str
    steps: int
    batch: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says after each step, one JSON line."""

    step: int
    loss: float


def train(job: Job) -> None:
    """Train this rank's stages of the plan in the job's folder; write the median step's timeline and gradients."""
    torch.set_num_threads(1)
    folder = Path(job.folder)
    pipe = autopipe.pipeline(build(), plan=folder / PLAN, loss_fn=next_byte_loss)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=LEARNING_RATE)
    text = read_text()
    meter = UsageMeter()
    gradients: dict[int, dict[str, Tensor]] = {}
    timelines: list[Timeline] = []
    for step in range(job.steps):
        inputs, target = draw_batch(text, step=step, batch=job.batch, time=CONTEXT)
        loss = pipe.step(inputs, target=target)
        if step in (0, job.steps - 1):
            gradients[step] = {name: p.grad.clone() for name, p in pipe.named_parameters() if p.grad is not None}
        update = time.perf_counter_ns()
        optimizer.step()
        timelines.append(with_optimizer(pipe.timeline(), time.perf_counter_ns() - update))
        optimizer.zero_grad()
        if pipe.rank == 0:
            print(msgspec.json.encode(Report(step=step, loss=loss.item())).decode(), flush=True)
    usage = meter.read()
    inputs, target = draw_batch(text, step=job.steps, batch=job.batch, time=CONTEXT)
    peak = counted_peak(pipe, optimizer, lambda: pipe.step(inputs, target=target))
    result = {"gradients": gradients, "peak_bytes": peak, "usage": tuple(usage)}
    torch.save(result, folder / f"rank{pipe.rank}.pt")
    if pipe.rank == 0:
        save(median_step(timelines[WARM_UP:] or timelines), folder / TIMELINE)


if __name__ == "__main__":
    train(msgspec.json.decode(sys.argv[1], type=Job))
