"""One rank of the demo: torchrun starts it twice, it trains its stages and writes down what it saw."""

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

import autopipe
from autopipe.cli.demo.model import CONTEXT, LEARNING_RATE, build, next_byte_loss
from autopipe.cli.demo.text import Batch, draw_batch, read_text
from autopipe.documents.files import save
from autopipe.documents.timeline import Lane, Span, Timeline
from autopipe.profiler.load import ForeignLoad
from autopipe.profiler.memory import StorageLedger

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


class Usage(NamedTuple):
    """Shares of all processors while the ranks trained: this rank's, and all others' (None: the system hides it)."""

    own_share: float
    others_share: float | None


def train(job: Job) -> None:
    """Train this rank's stages of the plan in the job's folder; write the median step's timeline and gradients."""
    torch.set_num_threads(1)
    folder = Path(job.folder)
    pipe = autopipe.pipeline(build(), plan=folder / PLAN, loss_fn=next_byte_loss)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=LEARNING_RATE)
    text = read_text()
    load, start, cpu_start = ForeignLoad(), time.perf_counter(), time.process_time()
    gradients: dict[int, dict[str, Tensor]] = {}
    timelines: list[Timeline] = []
    for step in range(job.steps):
        inputs, target = draw_batch(text, step=step, batch=job.batch, time=CONTEXT)
        loss = pipe.step(inputs, target=target)
        if step in (0, job.steps - 1):
            gradients[step] = {name: p.grad.clone() for name, p in pipe.named_parameters() if p.grad is not None}
        update = time.perf_counter_ns()
        optimizer.step()
        timelines.append(_with_optimizer(pipe.timeline(), time.perf_counter_ns() - update))
        optimizer.zero_grad()
        if pipe.rank == 0:
            print(msgspec.json.encode(Report(step=step, loss=loss.item())).decode(), flush=True)
    capacity = (time.perf_counter() - start) * (os.cpu_count() or 1)
    usage = Usage(own_share=(time.process_time() - cpu_start) / capacity, others_share=load.share())
    peak = counted_peak(pipe, optimizer, draw_batch(text, step=job.steps, batch=job.batch, time=CONTEXT))
    result = {"gradients": gradients, "peak_bytes": peak, "usage": tuple(usage)}
    torch.save(result, folder / f"rank{pipe.rank}.pt")
    if pipe.rank == 0:
        save(median_step(timelines[WARM_UP:] or timelines), folder / TIMELINE)


def counted_peak(pipe: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> int:
    """Return the most bytes that this rank holds in one more step, every storage counted as it comes and goes.

    Parameters, gradients, optimizer state and buffers are there from the start.
    """
    held: list[Tensor] = [buffer for module in pipe.modules() for buffer in module.buffers()]
    for parameter in pipe.parameters():
        parameter.grad = torch.zeros_like(parameter)
        held += [parameter, parameter.grad]
    held += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    with StorageLedger() as ledger:
        pipe.step(batch.inputs, target=batch.target)
    return sum(tensor.untyped_storage().nbytes() for tensor in held) + ledger.peak_bytes


def foreign_share(usages: list[Usage]) -> float | None:
    """Return the share of all processors that programs other than the ranks took, None where it is hidden.

    Every rank counts its peers among the others; what is left of them without the peers is foreign.
    """
    total = sum(usage.own_share for usage in usages)
    shares = [usage.others_share - (total - usage.own_share) for usage in usages if usage.others_share is not None]
    return max(0.0, statistics.mean(shares)) if shares else None


def median_step(timelines: list[Timeline]) -> Timeline:
    """Return the timeline of the step with the median duration."""
    middle = statistics.median_low(timeline.step_ns for timeline in timelines)
    return next(timeline for timeline in timelines if timeline.step_ns == middle)


def _with_optimizer(timeline: Timeline, optimizer_ns: int) -> Timeline:
    """Return ``timeline`` with the optimizer's step at its end, as long on every rank as on this one."""
    end = timeline.step_ns + optimizer_ns
    span = Span(lane=Lane.OPTIMIZER, label="optimizer", start_ns=timeline.step_ns, end_ns=end)
    ranks = tuple(msgspec.structs.replace(rank, spans=(*rank.spans, span)) for rank in timeline.ranks)
    return msgspec.structs.replace(timeline, ranks=ranks, step_ns=end)


if __name__ == "__main__":
    train(msgspec.json.decode(sys.argv[1], type=Job))
