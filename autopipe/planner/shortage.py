"""A refusal says what does not fit, by how much, and what would."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopipe.costs.size import at_size
from autopipe.costs.stages import Intervals
from autopipe.costs.tables import Table
from autopipe.hardware.cluster import Cluster
from autopipe.planner.bounds import FAR
from autopipe.planner.problem import Problem, make_problem
from autopipe.units import MIB, format_bytes

MOST_STAGES_TRIED = 64


def infeasible_message(problems: Sequence[Problem]) -> str:
    """Return why none of ``problems`` has a split that fits, and what would make one fit.

    Every remedy has been checked by looking for a split with it.
    """
    found = [(shortage(problem), problem) for problem in problems]
    least, problem = min(found, key=lambda pair: pair[0].excess_bytes)
    stage, begin, end = least.stage, least.begin, least.end
    layers = problem.intervals.sized.profile.layers
    needed, state = (int(table[begin, end]) for table in (problem.memory_bytes[stage], problem.intervals.memory.state))
    names = layers[begin].name if end - begin == 1 else f"{layers[begin].name} to {layers[end - 1].name}"
    remedies = "; ".join(_remedies(problem, least))
    devices = f"{problem.stages} device{'s' if problem.stages > 1 else ''}"
    return (
        f"no plan fits on {devices}. In the split that comes closest, stage {stage} ({names}) needs "
        f"{format_bytes(needed)} and its device has {format_bytes(problem.limits[stage])}: "
        f"{format_bytes(state)} for parameters, gradients, optimizer state and buffers, and "
        f"{format_bytes(needed - state)} for activations and messages of micro-batches of {problem.micro_batch_size} "
        f"under {problem.schedule}. What would fit: {remedies}."
    )


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """The split that comes closest to fitting: its worst stage, layers begin to end - 1, and the bytes it lacks."""

    stage: int
    begin: int
    end: int
    excess_bytes: int

    def in_words(self, problem: Problem) -> str:
        """Return the shortage as a remark."""
        needed = int(problem.memory_bytes[self.stage][self.begin, self.end])
        limit = format_bytes(problem.limits[self.stage])
        return f"does not fit: rank {self.stage} would need {format_bytes(needed)} of {limit}"


def shortage(problem: Problem) -> Shortage:
    """Return how close the closest split of ``problem`` comes to fitting; nothing is lacking if one fits.

    The largest excess of a stage over its device is made least, by a dynamic programme over cuts.
    """
    excesses = [
        np.where(legal, -FAR if limit is None else table - limit, FAR)
        for legal, table, limit in zip(problem.legal, problem.memory_bytes, problem.limits, strict=True)
    ]
    worst: Table = np.full(problem.layers + 1, FAR)
    worst[problem.layers] = -FAR
    choices: list[Table] = []
    for excess in reversed(excesses):
        reach = np.maximum(excess, worst[None, :])
        choices.append(reach.argmin(axis=1))
        worst = reach.min(axis=1)
    bounds = [0]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
    over = [int(excess[bounds[stage], bounds[stage + 1]]) for stage, excess in enumerate(excesses)]
    stage = max(range(problem.stages), key=over.__getitem__)
    return Shortage(stage=stage, begin=bounds[stage], end=bounds[stage + 1], excess_bytes=max(0, over[stage]))


def _remedies(problem: Problem, least: Shortage) -> Iterator[str]:
    limit = problem.limits[least.stage]
    assert limit is not None, "what has no limit fits"
    devices = problem.cluster.devices[: problem.stages]
    if len({device.memory_bytes for device in devices}) == 1:
        needed = -(-(limit + least.excess_bytes) // MIB)
        yield f"{needed} MiB on each device (--memory {needed}MiB)"
    else:
        yield f"{-(-least.excess_bytes // MIB)} MiB more on every device"
    if problem.schedule != "1f1b" and _fits(problem, schedule="1f1b"):
        yield "1F1B (--schedule 1f1b)"
    smallest = problem.intervals.sized.profile.micro_batches[0]
    if smallest < problem.micro_batch_size and _fits(problem, micro_batch_size=smallest):
        yield f"smaller micro-batches (--micro-batch {smallest})"
    stages = next((count for count in _larger_counts(problem) if _fits(problem, stages=count)), None)
    if stages is not None:
        yield f"more devices of the kind (--gpus {stages})"


def _larger_counts(problem: Problem) -> Iterator[int]:
    layers = problem.layers
    forbidden = {cut for cut in problem.intervals.sized.profile.forbidden_cuts if 0 < cut < layers}
    most = layers - len(forbidden)
    yield from range(problem.stages + 1, min(most, problem.stages + MOST_STAGES_TRIED) + 1)


def _fits(
    problem: Problem,
    *,
    schedule: str | None = None,
    stages: int | None = None,
    micro_batch_size: int | None = None,
) -> bool:
    """Tell whether a split fits when one choice is made otherwise."""
    intervals, count = problem.intervals, problem.micro_batches
    if micro_batch_size is not None:
        samples = count * problem.micro_batch_size
        intervals = Intervals.of(at_size(intervals.sized.profile, micro_batch_size))
        count = -(-samples // micro_batch_size)
    stages = stages or problem.stages
    devices = problem.cluster.devices
    cluster = Cluster(
        devices=devices + (devices[-1],) * (stages - len(devices)),
        intra_node=problem.cluster.intra_node,
        inter_node=problem.cluster.inter_node,
    )
    changed = make_problem(
        intervals, cluster, schedule=schedule or problem.schedule, stages=stages, micro_batches=count
    )
    return shortage(changed).excess_bytes == 0
