"""A planning problem: what every interval of layers costs as every stage, for one micro-batch size and schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from autopipe.costs.stages import Intervals
from autopipe.costs.tables import Table
from autopipe.costs.time import all_reduce_ns
from autopipe.documents.conditions import Conditions
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.kind import Kind
from autopipe.planner.levels import Levels
from autopipe.planner.places import Mask, Windows, legal_intervals, pairs_together, windows_of
from autopipe.planner.stage_tables import CostTables, first_level, stage_tables
from autopipe.planner.wishes import Wishes
from autopipe.schedules.moments import Moment, named_moments
from autopipe.schedules.named import placement

FAR = np.int64(1 << 61)


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A parameter that several layers read, and the time to sum its gradients if they are on two ranks."""

    name: str
    layers: tuple[int, ...]
    cost_ns: int


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Tables by stage; entry [begin, end] of each, shape (L + 1, L + 1), speaks of layers begin to end - 1.

    Attributes
    ----------
    levels : Levels
    level : tuple of Table
        Which of the levels an interval has as that stage: the fastest that fits, by itself, on its rank.
    forward_ns, compute_ns : tuple of Table
        Forward, and forward and backward, of one micro-batch on the stage's device.
    least_ns : tuple of Table
        A time under `compute_ns` of every choice of recomputed layers that fits, in the levels or not.
    input_ns : tuple of Table or None
        Forward and the input-gradient part of the backward; None where the parts were not measured.
    hop_ns : tuple of Table
        A micro-batch's way into the stage and its gradient's way back, 0 for the first stage.
    pace_ns : tuple of Table
        The least time between two micro-batches: the stage's own, or what occupies the link into it.
    tail_ns : tuple of Table
        What follows the last backward: the sum of gradients over replicas, and the optimizer.
    legal, allowed, possible : tuple of Mask
        Whether the stage may be that interval: cuts are legal, every other stage finds a layer and wishes are
        kept; whether it fits in memory too; and whether it might fit with some choice of recomputed layers.
    limits : tuple of int or None
        By rank: the memory of the device in bytes, None where not known.
    in_flight : tuple of int
        The most micro-batches that the schedule has in flight at the stage.
    returning : Mask
        By boundary: whether a gradient comes back through it. Behind frozen layers, and without a backward, none does.
    tied : tuple of Tied
    together : tuple of (int, int)
        Layers that are to be on one rank.
    moments : tuple of tuples of Moment
        By rank.
    windows : tuple of (int, int)
        By boundary, from that before the first stage: the first and the last place where it can be.
    """

    levels: Levels
    grid: DeviceGrid
    kind: Kind
    micro_batches: int
    stage_ranks: tuple[int, ...]
    level: tuple[Table, ...]
    forward_ns: tuple[Table, ...]
    compute_ns: tuple[Table, ...]
    least_ns: tuple[Table, ...]
    input_ns: tuple[Table, ...] | None
    hop_ns: tuple[Table, ...]
    pace_ns: tuple[Table, ...]
    tail_ns: tuple[Table, ...]
    legal: tuple[Mask, ...]
    allowed: tuple[Mask, ...]
    possible: tuple[Mask, ...]
    limits: tuple[int | None, ...]
    in_flight: tuple[int, ...]
    returning: Mask
    tied: tuple[Tied, ...]
    together: tuple[tuple[int, int], ...]
    moments: tuple[tuple[Moment, ...], ...]
    windows: Windows

    @property
    def intervals(self) -> Intervals:
        """The costs without recompute, unless all layers are to recompute."""
        return self.levels.base

    @property
    def conditions(self) -> Conditions:
        """The executor's own costs, as far as they were measured."""
        return self.intervals.sized.profile.conditions or Conditions()

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return self.intervals.times.layers

    @property
    def stages(self) -> int:
        """The number of stages, S = p * v."""
        return len(self.stage_ranks)

    @property
    def ranks(self) -> int:
        """The pipeline size, p."""
        return len(self.limits)

    @property
    def micro_batch_size(self) -> int:
        """In samples."""
        return self.intervals.sized.micro_batch_size

    @property
    def weight(self) -> int:
        """How often the pace counts in the objective: each rank runs all its stages for each further micro-batch."""
        return (self.micro_batches - 1) * self.kind.virtual

    @property
    def coupled(self) -> bool:
        """Whether what fits on a rank depends on several stages."""
        return self.kind.virtual > 1 and any(limit is not None for limit in self.limits)

    def turns(self, stage: int) -> bool:
        """Tell whether the stage ever waits for a micro-batch to come back before it takes the next one in."""
        return self.kind.schedule in ("1f1b", "gpipe") and self.micro_batches > self.in_flight[stage]


def make_problem(
    levels: Levels, grid: DeviceGrid, *, kind: Kind, micro_batches: int, wishes: Wishes | None = None
) -> Problem:
    """Return the problem of cutting the layers into the stages of ``kind`` on the ranks of ``grid``.

    Notes
    -----
    Memory is O(stages * L^2).
    """
    wishes = wishes or Wishes()
    ranks = len(grid.rows)
    home = placement(kind.schedule, ranks=ranks, virtual=kind.virtual)
    moments = named_moments(
        kind.schedule, ranks=ranks, micro_batches=micro_batches, virtual=kind.virtual, depth=kind.depth
    )
    pairs = pairs_together(wishes)
    legal = legal_intervals(levels.base, len(home), wishes, pairs if kind.virtual == 1 else ())
    costs = CostTables(levels, grid)
    stages = [
        stage_tables(costs, stage, home, moments[rank], micro_batches, legal[stage]) for stage, rank in enumerate(home)
    ]
    allowed = tuple(stage.allowed for stage in stages)
    inputs = tuple(stage.input_ns for stage in stages if stage.input_ns is not None)
    return Problem(
        levels=levels,
        grid=grid,
        kind=kind,
        micro_batches=micro_batches,
        stage_ranks=home,
        level=tuple(stage.level for stage in stages),
        forward_ns=tuple(stage.forward_ns for stage in stages),
        compute_ns=tuple(stage.compute_ns for stage in stages),
        least_ns=tuple(stage.least_ns for stage in stages),
        input_ns=inputs or None,
        hop_ns=tuple(stage.hop_ns for stage in stages),
        pace_ns=tuple(stage.pace_ns for stage in stages),
        tail_ns=tuple(stage.tail_ns for stage in stages),
        legal=legal,
        allowed=allowed,
        possible=tuple(stage.possible for stage in stages),
        limits=tuple(device.memory_bytes for device in grid.devices),
        in_flight=tuple(stage.in_flight for stage in stages),
        returning=_returning(levels.base),
        tied=_tied(levels.base, grid),
        together=() if kind.virtual == 1 else pairs,
        moments=moments,
        windows=windows_of(allowed, levels.base.times.layers),
    )


def without_limits(problem: Problem) -> Problem:
    """Return ``problem`` with every legal interval allowed without recompute, whether it fits or not."""
    costs = CostTables(problem.levels.alone(), problem.grid)
    compute = tuple(costs.compute(0, problem.grid.devices[rank].speed) for rank in problem.stage_ranks)
    pace = tuple(
        costs.pace(0, problem.grid.devices[rank].speed, costs.link(stage, problem.stage_ranks))
        for stage, rank in enumerate(problem.stage_ranks)
    )
    return replace(
        problem,
        levels=problem.levels.alone(),
        level=tuple(first_level(table.shape) for table in problem.level),
        compute_ns=compute,
        least_ns=compute,
        pace_ns=pace,
        allowed=problem.legal,
        possible=problem.legal,
        windows=windows_of(problem.legal, problem.layers),
        limits=(None,) * problem.ranks,
    )


def with_shares(problem: Problem) -> Problem:
    """Return ``problem`` with an equal share of each rank's memory for each of its stages: what fits then, fits."""
    cluster = problem.grid.cluster
    devices = tuple(
        msgspec.structs.replace(
            device, memory_bytes=device.memory_bytes and device.memory_bytes // problem.kind.virtual
        )
        for device in cluster.devices
    )
    grid = replace(problem.grid, cluster=msgspec.structs.replace(cluster, devices=devices))
    costs = CostTables(problem.levels, grid)
    stages = [
        stage_tables(costs, stage, problem.stage_ranks, problem.moments[rank], problem.micro_batches, legal)
        for stage, (rank, legal) in enumerate(zip(problem.stage_ranks, problem.legal, strict=True))
    ]
    allowed = tuple(stage.allowed for stage in stages)
    return replace(
        problem,
        level=tuple(stage.level for stage in stages),
        compute_ns=tuple(stage.compute_ns for stage in stages),
        pace_ns=tuple(stage.pace_ns for stage in stages),
        allowed=allowed,
        windows=windows_of(allowed, problem.layers),
    )


def objective_ns(problem: Problem, bounds: Sequence[int], extra_ns: Sequence[int] = ()) -> int:
    """Return the solver's objective for the split at ``bounds``: an estimate of the step.

    It is (m-1) * v * T + the sum of all stages' computations and hops + the longest tail + tied gradients,
    where T is the pace: the time between two micro-batches in the steady state, and v the stages of a rank.

    Parameters
    ----------
    extra_ns : sequence of int, optional
        By stage: recomputation beyond that of the problem's own levels.
    """
    spans = tuple(zip(range(problem.stages), bounds, bounds[1:], strict=False))
    total = sum(int(problem.compute_ns[s][i, j] + problem.hop_ns[s][i, j]) for s, i, j in spans) + sum(extra_ns)
    tails = [0] * problem.ranks
    for s, i, j in spans:
        tails[problem.stage_ranks[s]] += int(problem.tail_ns[s][i, j])
    return problem.weight * pace_ns(problem, bounds, extra_ns) + total + max(tails) + apart_ns(problem, bounds)


def apart_ns(problem: Problem, bounds: Sequence[int]) -> int:
    """Return the time to sum the gradients of all tied parameters that are on several ranks."""
    return sum(tied.cost_ns for tied in problem.tied if len(ranks_of(problem, bounds, tied.layers)) > 1)


def ranks_of(problem: Problem, bounds: Sequence[int], layers: Sequence[int]) -> set[int]:
    """Return the ranks of ``layers`` in the split at ``bounds``."""
    stages = np.searchsorted(np.asarray(bounds), np.asarray(layers), side="right") - 1
    return {problem.stage_ranks[int(stage)] for stage in stages}


def pace_ns(problem: Problem, bounds: Sequence[int], extra_ns: Sequence[int] = ()) -> int:
    """Return the least time between two micro-batches of the split at ``bounds``.

    No less than any stage or link takes for one; and while a micro-batch travels from stage s to the end and
    back, s can take in no more than it may have in flight. Where no gradient comes back to s, it need not wait.
    """
    pace = round_trip = 0
    for stage in reversed(range(problem.stages)):
        at = bounds[stage], bounds[stage + 1]
        own = int(problem.compute_ns[stage][at]) + (extra_ns[stage] if extra_ns else 0)
        round_trip += own
        pace = max(pace, own, int(problem.pace_ns[stage][at]))
        if problem.turns(stage) and problem.returning[at[1]]:
            pace = max(pace, -(-round_trip // problem.in_flight[stage]))
        round_trip += int(problem.hop_ns[stage][at])
    return pace


def _returning(intervals: Intervals) -> Mask:
    """Return by boundary whether a value crosses it whose gradient comes back; all return behind the last layer."""
    crossed = np.zeros(intervals.times.layers + 1, dtype=bool)
    for value in intervals.sized.profile.values:
        if value.requires_grad and value.consumers:
            crossed[value.producer + 1 : max(value.consumers) + 1] = True
    crossed[-1] = True
    return crossed


def _tied(intervals: Intervals, grid: DeviceGrid) -> tuple[Tied, ...]:
    ranks = len(grid.rows)
    link = grid.link(0, ranks - 1)
    return tuple(
        Tied(name=shared.name, layers=shared.layers, cost_ns=all_reduce_ns(shared.bytes, 2, link))
        for shared in intervals.sized.profile.shared
        if ranks > 1 and len(shared.layers) > 1
    )
