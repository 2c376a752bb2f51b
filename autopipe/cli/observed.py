"""What a rank sees of its own run: peak memory, the step of median length, the load of other programs."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from autopipe.documents.timeline import Lane, Span, Timeline
from autopipe.profiler.load import ForeignLoad
from autopipe.profiler.memory import StorageLedger


class Usage(NamedTuple):
    """Shares of all processors while the ranks trained: this rank's, and all others' (None: the system hides it)."""

    own_share: float
    others_share: float | None


class UsageMeter:
    """Counts from its making on what this process and all others take of the processors."""

    def __init__(self) -> None:
        self._load, self._start, self._cpu_start = ForeignLoad(), time.perf_counter(), time.process_time()

    def read(self) -> Usage:
        """Return the shares so far."""
        capacity = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        own = (time.process_time() - self._cpu_start) / capacity
        return Usage(own_share=own, others_share=self._load.share())


def counted_peak(pipe: Any, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> int:
    """Return the most bytes that this rank holds in one more ``step``, every storage counted as it comes and goes.

    Parameters, gradients, optimizer state and buffers are there from the start.
    """
    held: list[Tensor] = [buffer for module in pipe.modules() for buffer in module.buffers()]
    for parameter in pipe.parameters():
        parameter.grad = torch.zeros_like(parameter)
        held += [parameter, parameter.grad]
    held += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    with StorageLedger() as ledger:
        step()
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


def with_optimizer(timeline: Timeline, optimizer_ns: int) -> Timeline:
    """Return ``timeline`` with the optimizer's step at its end, as long on every rank as on this one."""
    end = timeline.step_ns + optimizer_ns
    span = Span(lane=Lane.OPTIMIZER, label="optimizer", start_ns=timeline.step_ns, end_ns=end)
    ranks = tuple(msgspec.structs.replace(rank, spans=(*rank.spans, span)) for rank in timeline.ranks)
    return msgspec.structs.replace(timeline, ranks=ranks, step_ns=end)
