"""A split is scored by simulating it with its real stage times, links, sums of gradients and optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from autopipe.costs.recompute import recomputing
from autopipe.costs.stages import EdgeCost, Intervals, StageCost, edge_costs, stage_costs
from autopipe.costs.time import all_reduce_ns
from autopipe.planner.kind import Kind
from autopipe.planner.problem import Problem
from autopipe.planner.solved import levels_of
from autopipe.schedules.action import Schedule
from autopipe.schedules.named import make
from autopipe.simulator.events import Run, run

WALKED_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class Costed:
    """A split of a problem with what its stages and edges cost.

    ``recompute`` are the layers that do, ``kind`` the schedule that it is for: the problem's, or one of another depth.
    """

    problem: Problem
    kind: Kind
    bounds: tuple[int, ...]
    recompute: frozenset[int]
    stages: tuple[StageCost, ...]
    edges: tuple[EdgeCost, ...]

    @property
    def size(self) -> int:
        """How many actions its schedule has."""
        return 2 * self.problem.stages * self.problem.micro_batches

    def schedule(self, micro_batches: int | None = None) -> Schedule:
        """Return its schedule, for another number of micro-batches if given."""
        return make(
            self.kind.schedule,
            stages=self.problem.ranks,
            micro_batches=micro_batches or self.problem.micro_batches,
            virtual=self.kind.virtual,
            depth=self.kind.depth,
        )

    def simulated(self, micro_batches: int | None = None) -> Run:
        """Return what its step comes to, for another number of micro-batches if given."""
        conditions = self.problem.conditions
        return run(self.schedule(micro_batches), self.stages, self.edges, conditions=conditions, with_spans=False)

    def estimate_ns(self) -> int:
        """Return about how long its simulated step is.

        From some rounds of micro-batches on a step grows by the same time for each further round: two short
        steps tell what a long one takes.
        """
        count, ranks = self.problem.micro_batches, self.problem.ranks
        short = WALKED_ROUNDS * ranks + count % ranks
        if count <= short + 2 * ranks:
            return self.simulated().step_ns
        low, high = (self.simulated(walked).step_ns for walked in (short, short + ranks))
        return high + (high - low) * (count - short - ranks) // ranks


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A costed split with its simulated step, and the schedule's lines where it has no name and sizes."""

    costed: Costed
    run: Run
    actions: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """What it is a solution of."""
        return self.costed.problem

    @property
    def bounds(self) -> tuple[int, ...]:
        """The boundaries of its stages."""
        return self.costed.bounds

    @property
    def stages(self) -> tuple[StageCost, ...]:
        """What its stages cost."""
        return self.costed.stages

    @property
    def edges(self) -> tuple[EdgeCost, ...]:
        """What its edges carry."""
        return self.costed.edges

    @property
    def kind(self) -> Kind:
        """Its schedule."""
        return self.costed.kind

    @property
    def step_ns(self) -> int:
        """The simulated step: all micro-batches, sums of gradients, optimizer."""
        return self.run.step_ns

    @property
    def fits(self) -> bool:
        """Whether every rank's simulated peak is within its limit."""
        pairs = zip(self.run.peak_bytes, self.problem.limits, strict=True)
        return all(limit is None or peak <= limit for peak, limit in pairs)

    @property
    def rank(self) -> tuple[object, ...]:
        """What candidates are compared by.

        Step, then kind of schedule, replicas, recompute, peak memory, micro-batches, devices and cuts.
        """
        costed = self.costed
        return (
            self.step_ns,
            self.kind.preference,
            self.problem.grid.replicas,
            len(costed.recompute),
            max(self.run.peak_bytes),
            self.problem.micro_batches,
            self.problem.grid.rows,
            costed.bounds,
        )


def score(
    problem: Problem, bounds: Sequence[int], *, levels: Sequence[int] = (), kind: Kind | None = None
) -> Candidate:
    """Return the split at ``bounds`` = (0, b1, ..., L) of ``problem`` with its simulated step.

    Parameters
    ----------
    levels : sequence of int, optional
        Of recompute, by stage; the problem's own if not given.
    kind : Kind, optional
        The problem's own if not given.
    """
    return simulated(costed(problem, bounds, levels=levels, kind=kind))


def costed(problem: Problem, bounds: Sequence[int], *, levels: Sequence[int] = (), kind: Kind | None = None) -> Costed:
    """Return the split at ``bounds`` with what its stages and edges cost; parameters are those of `score`."""
    bounds = tuple(bounds)
    chosen: set[int] = set()
    for stage, level in enumerate(levels or levels_of(problem, bounds)):
        inside = range(bounds[stage], bounds[stage + 1])
        chosen |= problem.levels.intervals[level].sized.recompute.intersection(inside)
    return recosted(problem, bounds, frozenset(chosen), kind or problem.kind)


def recosted(problem: Problem, bounds: tuple[int, ...], recompute: frozenset[int], kind: Kind) -> Costed:
    """Return the split at ``bounds`` in which exactly the layers ``recompute`` recompute, with its costs."""
    intervals = problem.intervals
    if recompute - intervals.sized.recompute:
        intervals = Intervals.of(recomputing(intervals.sized, recompute))
    stages = stage_costs(intervals, problem.grid, bounds, problem.stage_ranks)
    if problem.grid.replicas > 1:
        stages = tuple(_summed(problem, bounds, stage, cost) for stage, cost in enumerate(stages))
    edges = edge_costs(intervals.sized, problem.grid, bounds, problem.stage_ranks)
    return Costed(problem=problem, kind=kind, bounds=bounds, recompute=recompute, stages=stages, edges=edges)


def simulated(costs: Costed) -> Candidate:
    """Return a costed split with its simulated step."""
    return Candidate(costed=costs, run=costs.simulated())


def with_schedule(costs: Costed, schedule: Schedule, result: Run) -> Candidate:
    """Return a costed split under a schedule that is spelt out."""
    kind = replace(costs.kind, schedule=schedule.name, depth=0)
    return Candidate(costed=replace(costs, kind=kind), run=result, actions=tuple(schedule.to_text().splitlines()))


def _summed(problem: Problem, bounds: Sequence[int], stage: int, cost: StageCost) -> StageCost:
    """Return the cost of a stage with the sum of its gradients over the replicas."""
    size = int(problem.intervals.times.gradient_bytes[bounds[stage], bounds[stage + 1]])
    link = problem.grid.replica_link(problem.stage_ranks[stage])
    return msgspec.structs.replace(cost, replica_ns=all_reduce_ns(size, problem.grid.replicas, link))
