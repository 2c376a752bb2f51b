"""A refusal says what does not fit, by how much, and what would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import msgspec
import numpy as np

from autopipe.costs.tables import Table
from autopipe.errors import InfeasibleError, InputError
from autopipe.hardware.cluster import Cluster
from autopipe.planner.bounds import bottleneck
from autopipe.planner.branch import Branch, Space
from autopipe.planner.cells import Tables, cells
from autopipe.planner.deadline import Deadline
from autopipe.planner.places import windows_of
from autopipe.planner.problem import FAR, Problem
from autopipe.planner.rank_rows import overflow_bytes
from autopipe.planner.request import AUTO, Request, most_stages, shapes
from autopipe.planner.solved import arcs_at
from autopipe.planner.stage_tables import CostTables, largest_alone
from autopipe.units import MIB, format_bytes

MOST_STAGES_TRIED = 64
MOST_BRANCHES = 8


def infeasible_message(space: Space, unfit: Sequence[Branch], deadline: Deadline) -> str:
    """Return why nothing fits in any of the ``unfit`` branches, and what would make something fit.

    Every remedy has been checked by looking for a split with it, while there was time.
    """
    found = []
    for branch in _most_frugal(unfit):
        problem = space.problem(branch)
        found.append((shortage(problem), problem))
    known = [pair for pair in found if pair[0] is not None]
    if not known:
        raise InfeasibleError(_by_wishes(space))
    least, problem = min(((one, p) for one, p in known if one is not None), key=lambda pair: pair[0].excess_bytes)
    layers = problem.intervals.sized.profile.layers
    names = layers[least.begin].name
    if least.end - least.begin > 1:
        names += f" to {layers[least.end - 1].name}"
    devices = len(space.cluster.devices)
    remedies = "; ".join(_remedies(space, problem, least, deadline))
    if not remedies and deadline.is_over:
        remedies = "no time was left to find out (--time-limit)"
    return (
        f"no plan fits on {devices} device{'s' if devices > 1 else ''}. In the split that comes closest, stage "
        f"{least.stage} ({names}) needs {format_bytes(least.needed_bytes)} and its device has "
        f"{format_bytes(problem.limits[least.rank])}: {format_bytes(least.state_bytes)} for parameters, gradients, "
        f"optimizer state and buffers, and {format_bytes(least.needed_bytes - least.state_bytes)} for activations and "
        f"messages of micro-batches of {problem.micro_batch_size} under {problem.kind.schedule}. What would fit: "
        f"{remedies}."
    )


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """The split that comes closest to fitting: its worst stage, layers begin to end - 1, and the bytes it lacks."""

    stage: int
    rank: int
    begin: int
    end: int
    needed_bytes: int
    state_bytes: int
    excess_bytes: int

    def in_words(self, problem: Problem) -> str:
        """Return the shortage as a remark."""
        limit = format_bytes(problem.limits[self.rank])
        return f"does not fit: rank {self.rank} would need {format_bytes(self.needed_bytes)} of {limit}"


def shortage(problem: Problem) -> Shortage | None:
    """Return how close the closest split of ``problem`` comes to fitting, None if no split is legal.

    The largest excess of a stage over its device is made least, with the recompute that holds least, by a dynamic
    programme over cuts. A rank of several stages is then looked at as a whole.
    """
    needed = [_least_bytes(problem, stage) for stage in range(problem.stages)]
    legal = replace(problem, allowed=problem.legal, windows=windows_of(problem.legal, problem.layers))
    excess = []
    for stage, table in enumerate(needed):
        limit = problem.limits[problem.stage_ranks[stage]]
        (low, high), (first, last) = legal.windows[stage], legal.windows[stage + 1]
        part = table[low : high + 1, first : last + 1]
        excess.append(np.full_like(part, -FAR) if limit is None else part - limit)
    worst, bounds = bottleneck(legal, excess)
    if worst >= FAR:
        return None
    limits = [problem.limits[rank] or int(FAR) for rank in problem.stage_ranks]
    over = [int(table[bounds[s], bounds[s + 1]]) - limits[s] for s, table in enumerate(needed)]
    stage = max(range(problem.stages), key=over.__getitem__)
    at = bounds[stage], bounds[stage + 1]
    lacking = max(0, over[stage])
    if problem.coupled:
        lacking = max(lacking, overflow_bytes(problem, arcs_at(problem, bounds)))
    return Shortage(
        stage=stage,
        rank=problem.stage_ranks[stage],
        begin=at[0],
        end=at[1],
        needed_bytes=(problem.limits[problem.stage_ranks[stage]] or 0) + lacking if lacking else int(needed[stage][at]),
        state_bytes=int(problem.intervals.memory.state[at]),
        excess_bytes=lacking,
    )


def _least_bytes(problem: Problem, stage: int) -> Table:
    """Return the least that a rank needs for each interval as ``stage`` alone, over all levels of recompute."""
    costs = CostTables(problem.levels, problem.grid)
    largest = largest_alone(problem.moments[problem.stage_ranks[stage]], stage)
    tables = (
        costs.memory(level, stage, problem.stages, largest, problem.micro_batches)
        for level in range(len(problem.levels.intervals))
    )
    return reduce(np.minimum, tables)


def _most_frugal(unfit: Sequence[Branch]) -> list[Branch]:
    """Return, for each pipeline size, the branch that holds least: the smallest micro-batch, the preferred kind."""
    chosen: dict[int, Branch] = {}
    for branch in sorted(unfit, key=lambda one: (one.cell.micro_batch_size, one.kind.preference, one.cell.order)):
        chosen.setdefault(len(branch.cell.grid.rows), branch)
    return sorted(chosen.values(), key=lambda one: -len(one.cell.grid.rows))[:MOST_BRANCHES]


def _by_wishes(space: Space) -> str:
    return (
        f"no split of {space.profile.model} keeps all wishes: pins, forbidden cuts and layers to be kept together "
        "leave no place for the stages. Drop some of --pin, --forbid-cut and --together, or ask for other --stages."
    )


def _remedies(space: Space, problem: Problem, least: Shortage, deadline: Deadline) -> Iterator[str]:
    request = space.request
    yield from _by_memory(space, problem, least, deadline)
    if request.schedule not in (None, "1f1b") and _fits(
        space, deadline, msgspec.structs.replace(request, schedule="1f1b", virtual=None)
    ):
        yield "1F1B (--schedule 1f1b)"
    if request.recompute != AUTO and _fits(space, deadline, msgspec.structs.replace(request, recompute=AUTO)):
        yield "recompute (--recompute auto)"
    smallest = space.profile.micro_batches[0]
    fixed = request.micro_batch_size
    if (
        fixed is not None
        and smallest < fixed
        and _fits(space, deadline, msgspec.structs.replace(request, micro_batch_size=smallest))
    ):
        yield f"smaller micro-batches (--micro-batch {smallest})"
    if request.stages is not None and _fits(
        space, deadline, msgspec.structs.replace(request, stages=None, replicas=None)
    ):
        yield "another number of stages (leave --stages out)"
    stages = next((count for count in _larger_counts(space) if _fits_on(space, deadline, count)), None)
    if stages is not None:
        yield f"more devices of the kind (--gpus {stages})"


def _by_memory(space: Space, problem: Problem, least: Shortage, deadline: Deadline) -> Iterator[str]:
    limit = problem.limits[least.rank]
    assert limit is not None, "what has no limit fits"
    needed = -(-(limit + least.excess_bytes) // MIB)
    equal = len({device.memory_bytes for device in space.cluster.devices}) == 1
    extra = least.excess_bytes
    for _ in range(6):
        if _fits(space, deadline, space.request, _with_more(space.cluster, extra)):
            break
        extra = extra * 5 // 4 + MIB
        needed = -(-(limit + extra) // MIB)
    else:
        return
    if equal:
        yield f"{needed} MiB on each device (--memory {needed}MiB)"
    else:
        yield f"{-(-extra // MIB)} MiB more on every device"


def _with_more(cluster: Cluster, extra_bytes: int) -> Cluster:
    devices = tuple(
        msgspec.structs.replace(device, memory_bytes=device.memory_bytes and device.memory_bytes + extra_bytes)
        for device in cluster.devices
    )
    return msgspec.structs.replace(cluster, devices=devices)


def _larger_counts(space: Space) -> Iterator[int]:
    count = len(space.cluster.devices)
    yield from range(count + 1, min(most_stages(space.profile), count + MOST_STAGES_TRIED) + 1)


def _fits_on(space: Space, deadline: Deadline, count: int) -> bool:
    """Tell whether something fits on one pipeline of ``count`` devices, the further ones like the last."""
    devices = space.cluster.devices
    more = msgspec.structs.replace(space.cluster, devices=devices + (devices[-1],) * (count - len(devices)))
    return _fits(space, deadline, msgspec.structs.replace(space.request, stages=count, replicas=1), more)


def _fits(space: Space, deadline: Deadline, request: Request, cluster: Cluster | None = None) -> bool:
    """Tell whether a split is found that fits when it is asked for otherwise, or on other devices."""
    if deadline.is_over:
        return False
    changed = replace(space, request=request, cluster=cluster or space.cluster, tables=Tables(space.profile, request))
    try:
        pairs = shapes(space.profile, changed.cluster, request)
        found = cells(changed.cluster, changed.tables, request, pairs)
    except (InputError, InfeasibleError):
        return False
    branches = _most_frugal([branch for cell in found for branch in changed.branches(cell)])
    for branch in branches:
        tightened = changed.tightened(branch)
        if tightened is not None and tightened.split is not None and changed.holds(tightened, deadline):
            return True
    return False
