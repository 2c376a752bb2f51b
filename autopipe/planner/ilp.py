"""The integer programme: choose one interval of layers for every stage, so that the estimated step is shortest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from autopipe.errors import InputError
from autopipe.planner.bounds import Reduction
from autopipe.planner.deadline import Deadline
from autopipe.planner.engine import ENGINES
from autopipe.planner.engines import run
from autopipe.planner.problem import Problem, objective_ns
from autopipe.planner.rank_rows import Arc, arcs_of, extra_ns, rank_rows

LARGEST_COEFFICIENT = 1e4
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What the engine found: the bounds of the stages and the level of recompute of each.

    ``status`` is ``optimal`` (ended with a gap of at most `TOLERANCE`) or ``feasible`` (stopped by a limit
    of time or of nodes), ``bound_ns`` the engine's own proof that no objective is lower, ``gap`` (objective - bound) /
    objective as the engine has it, ``engine`` the one that answered.
    """

    bounds: tuple[int, ...]
    levels: tuple[int, ...]
    status: str
    objective_ns: int
    bound_ns: int
    gap: float
    engine: str


def solve(
    problem: Problem,
    reduction: Reduction,
    *,
    engine: str = "highs",
    time_limit_s: float = 30.0,
    nodes: int | None = None,
) -> Solution | None:
    """Return the split with the least objective among the intervals that ``reduction`` left, None if none was found.

    Raises
    ------
    InputError
        If the engine is unknown.

    Notes
    -----
    The engine's bound holds for the intervals that are left; all others were left out because no split with
    an objective of at most the incumbent's passes through them. One thread, fixed seed: deterministic unless
    the time limit ends the search.
    """
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}: choose from {', '.join(ENGINES)}.")
    if not reduction.arcs:
        return None
    deadline = Deadline.after(time_limit_s)
    programme = build(problem, reduction)
    answer = run(programme.model, engine=engine, time_limit_s=deadline.left_s, gap=TOLERANCE, nodes=nodes)
    if answer is None:
        return None
    path = sorted(arc for arc, variable in programme.chosen.items() if variable.varValue > 0.5)
    bounds = (0, *(arc.end for arc in path))
    objective = objective_ns(problem, bounds, [extra_ns(problem, arc) for arc in path])
    return Solution(
        bounds=bounds,
        levels=tuple(arc.level for arc in path),
        status="optimal" if answer.optimal else "feasible",
        objective_ns=objective,
        bound_ns=min(objective, round(answer.bound * programme.unit_ns)),
        gap=answer.gap,
        engine=answer.engine,
    )


def write_lp(problem: Problem, reduction: Reduction, path: str | Path) -> None:
    """Write the programme in the format that `path` ends with, ``.lp`` or ``.mps``.

    Raises
    ------
    InputError
        If it ends otherwise.
    """
    model = build(problem, reduction).model
    match Path(path).suffix:
        case ".lp":
            model.writeLP(str(path))
        case ".mps":
            model.writeMPS(str(path))
        case other:
            raise InputError(f"a programme is not written as {other or 'a file without ending'}: name it .lp or .mps.")


@dataclass(frozen=True, kw_only=True)
class Programme:
    """The model in PuLP, its binaries, and the nanoseconds of its unit of time."""

    model: Any
    chosen: Mapping[Arc, Any]
    unit_ns: float


def build(problem: Problem, reduction: Reduction) -> Programme:
    """Return the programme over the intervals that are left.

    Binary w[s,i,j,q] says that stage s is layers i to j - 1 with recompute at level q. With m micro-batches, v
    stages on each rank, T the pace, O the longest tail, y[t] whether tied parameter t is on two ranks, n[s] the
    in-flight micro-batches of stage s::

        minimise  (m-1) v T + sum (compute[s,i,j,q] + hop[s,i,j]) w[s,i,j,q] + O + sum cost[t] y[t]

        C1  sum_jq w[0,0,j,q] = 1                                       the first stage begins with layer 0
        C2  sum_iq w[s,i,c,q] = sum_jq w[s+1,c,j,q]                     each stage begins where one ended
        C3  T >= sum_ijq pace[s,i,j,q] w[s,i,j,q]                       no stage and no link is faster than T
        C4  n[s] T >= sum_{r>=s} compute[r] w[r] + sum_{r>s} hop[r] w[r]   nor is a round trip, while 1F1B turns
                      (less all of it, by a large constant, where no gradient comes back to stage s)
        C5  O >= sum_{s on r} sum_ijq tail[s,i,j] w[s,i,j,q]            for every rank r
        C6  sum_{s on r} sum_ijq memory[k,s,i,j,q] w[s,i,j,q] <= limit[r]   at each of its largest moments k
        C7  y[t] >= reads[t,a] on rank r - reads[t,b] on rank r         for neighbouring readers a, b of t
        C8  reads[a] on rank r = reads[b] on rank r                     for a and b that are to be together

    For a fixed T this is a shortest path, so the relaxation is tight. Where a rank has one stage, C6 is
    already settled: only intervals that fit are left.
    """
    return _Builder(problem, reduction).programme()


class _Builder:
    """The model under way: its binaries by arc, and the arcs by stage."""

    def __init__(self, problem: Problem, reduction: Reduction) -> None:
        import pulp

        self._lpsum = pulp.lpSum
        self.problem = problem
        self.arcs = arcs_of(problem, reduction.arcs)
        self.extra = {arc: extra_ns(problem, arc) for arc in self.arcs}
        self.unit = self._unit_ns()
        self.model = pulp.LpProblem("stages", pulp.LpMinimize)
        self.chosen = {
            arc: self.model.add_variable(f"w_{arc.stage}_{arc.begin}_{arc.end}_{arc.level}", cat="Binary")
            for arc in self.arcs
        }
        # `pace_ns` rounds up; with times of a few nanoseconds, m - 1 roundings can exceed what two splits differ by.
        kind = "Integer" if self.unit == 1.0 else "Continuous"
        self.pace = self.model.add_variable("T", lowBound=reduction.pace_low_ns / self.unit, cat=kind)
        self.tail = self.model.add_variable("O", lowBound=reduction.tail_low_ns / self.unit)
        self.apart = [self.model.add_variable(f"y_{index}", lowBound=0) for index in range(len(problem.tied))]
        self.by_stage: list[list[Arc]] = [[] for _ in range(problem.stages)]
        for arc in self.arcs:
            self.by_stage[arc.stage].append(arc)

    def programme(self) -> Programme:
        problem = self.problem
        compute = [self._total(problem.compute_ns, stage, with_extra=True) for stage in range(problem.stages)]
        hop = [self._total(problem.hop_ns, stage) for stage in range(problem.stages)]
        tied = self._lpsum(one.cost_ns / self.unit * self.apart[index] for index, one in enumerate(problem.tied))
        self.model += problem.weight * self.pace + self._lpsum(compute) + self._lpsum(hop) + self.tail + tied
        self.model += self._lpsum(self.chosen[arc] for arc in self.by_stage[0]) == 1, "C1"
        self._add_flow()
        for stage in range(problem.stages):
            self.model += self.pace >= self._paces(stage), f"C3_{stage}"
            if problem.turns(stage):
                round_trip = self._lpsum(compute[stage:]) + self._lpsum(hop[stage + 1 :]) - self._unbound(stage)
                self.model += problem.in_flight[stage] * self.pace >= round_trip, f"C4_{stage}"
        for rank in range(problem.ranks):
            own = [stage for stage, home in enumerate(problem.stage_ranks) if home == rank]
            tails = self._lpsum(self._total(problem.tail_ns, stage) for stage in own)
            self.model += self.tail >= tails, f"C5_{rank}"
        self._add_memory()
        self._add_tied()
        self._add_together()
        return Programme(model=self.model, chosen=self.chosen, unit_ns=self.unit)

    def _unbound(self, stage: int) -> Any:
        """Return what takes any round trip away where no gradient comes back to the stage."""
        problem = self.problem
        free = [self.chosen[arc] for arc in self.by_stage[stage] if not problem.returning[arc.end]]
        if not free:
            return 0
        longest = [
            max(
                (
                    int(problem.compute_ns[s][arc.begin, arc.end] + problem.hop_ns[s][arc.begin, arc.end])
                    + self.extra[arc]
                    for arc in self.by_stage[s]
                ),
                default=0,
            )
            for s in range(stage, problem.stages)
        ]
        return sum(longest) / self.unit * self._lpsum(free)

    def _total(self, tables: Sequence[Any], stage: int, *, with_extra: bool = False) -> Any:
        return self._lpsum(
            (int(tables[stage][arc.begin, arc.end]) + (self.extra[arc] if with_extra else 0))
            / self.unit
            * self.chosen[arc]
            for arc in self.by_stage[stage]
        )

    def _paces(self, stage: int) -> Any:
        problem = self.problem

        def pace(arc: Arc) -> int:
            at = arc.begin, arc.end
            return max(int(problem.compute_ns[stage][at]) + self.extra[arc], int(problem.pace_ns[stage][at]))

        return self._lpsum(pace(arc) / self.unit * self.chosen[arc] for arc in self.by_stage[stage])

    def _add_flow(self) -> None:
        for stage in range(len(self.by_stage) - 1):
            ends: dict[int, list[Any]] = {}
            begins: dict[int, list[Any]] = {}
            for arc in self.by_stage[stage]:
                ends.setdefault(arc.end, []).append(self.chosen[arc])
            for arc in self.by_stage[stage + 1]:
                begins.setdefault(arc.begin, []).append(self.chosen[arc])
            for cut in sorted({*ends, *begins}):
                self.model += (
                    self._lpsum(ends.get(cut, ())) == self._lpsum(begins.get(cut, ())),
                    f"C2_{stage}_{cut}",
                )

    def _add_memory(self) -> None:
        if not self.problem.coupled:
            return
        for rank, moment, needed in rank_rows(self.problem, self.arcs):
            limit = self.problem.limits[rank] or 1
            terms = [int(size) / limit * self.chosen[arc] for arc, size in zip(self.arcs, needed, strict=True) if size]
            self.model += self._lpsum(terms) <= 1, f"C6_{rank}_{moment}"

    def _on_rank(self, layer: int, rank: int) -> Any:
        home = self.problem.stage_ranks
        return self._lpsum(
            self.chosen[arc] for arc in self.arcs if home[arc.stage] == rank and arc.begin <= layer < arc.end
        )

    def _add_tied(self) -> None:
        for index, tied in enumerate(self.problem.tied):
            for first, second in pairwise(tied.layers):
                for rank in range(self.problem.ranks):
                    apart = self._on_rank(first, rank) - self._on_rank(second, rank)
                    self.model += self.apart[index] >= apart, f"C7_{index}_{first}_{rank}"

    def _add_together(self) -> None:
        for first, second in self.problem.together:
            for rank in range(self.problem.ranks):
                self.model += self._on_rank(first, rank) == self._on_rank(second, rank), f"C8_{first}_{second}_{rank}"

    def _unit_ns(self) -> float:
        """Return the unit that keeps the times of the programme within the engine's tolerances."""
        problem = self.problem
        tables = (problem.compute_ns, problem.hop_ns, problem.pace_ns, problem.tail_ns)
        longest = max((int(table[arc.stage][arc.begin, arc.end]) for arc in self.arcs for table in tables), default=1)
        return max(longest / LARGEST_COEFFICIENT, 1.0)
