"""One rank of a bench: it trains its stages on the same made-up mini-batch and writes down what it saw."""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

import autopipe
from autopipe import Arguments
from autopipe.cli.loss import loss_to_train
from autopipe.cli.observed import Usage, UsageMeter, counted_peak, median_step, with_optimizer
from autopipe.cli.subject import prepare
from autopipe.cli.values import TensorSpec
from autopipe.documents.files import load, save
from autopipe.documents.plan import Plan
from autopipe.profiler.optimizer import parse_optimizer

WARM_UP = 2
TIMELINE = "timeline.json"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told: files, steps, and the options that say what MODEL is called with."""

    folder: str
    plan: str
    model: str
    steps: int
    inputs: tuple[TensorSpec, ...]
    target: TensorSpec | None
    loss: str | None
    dtype: str | None
    optimizer: str


class Usages(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank writes at its end."""

    usage: Usage
    peak_bytes: int


def run(job: Job) -> None:
    """Train as told; rank 0 says each step, and writes the timeline of the step of median length."""
    torch.set_num_threads(1)
    folder = Path(job.folder)
    subject = prepare(job.model, inputs=job.inputs, target=job.target, loss=job.loss, dtype=job.dtype, device="cpu")
    plan = load(job.plan, Plan)
    pipe = autopipe.pipeline(subject.model, plan=plan, loss_fn=loss_to_train(subject))
    optimizer = parse_optimizer(job.optimizer)(list(pipe.parameters()))
    meter = UsageMeter()
    timelines = []

    def step() -> Any:
        return pipe.step(Arguments(*subject.args, **subject.kwargs), target=subject.target)

    for number in range(WARM_UP + job.steps):
        step()
        update = time.perf_counter_ns()
        optimizer.step()
        timelines.append(with_optimizer(pipe.timeline(), time.perf_counter_ns() - update))
        optimizer.zero_grad()
        if pipe.rank == 0:
            print(msgspec.json.encode({"step": number + 1}).decode(), flush=True)
    usage = meter.read()
    report = Usages(usage=usage, peak_bytes=counted_peak(pipe, optimizer, step))
    (folder / f"rank{pipe.rank}.json").write_bytes(msgspec.json.encode(report))
    if pipe.rank == 0:
        save(median_step(timelines[WARM_UP:]), folder / TIMELINE)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Job))
