"""The integer programme: choose one interval of layers for every stage, so that the estimated step is shortest."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from autopipe.errors import InputError
from autopipe.planner.bounds import Reduction
from autopipe.planner.engine import ENGINES, run_highs
from autopipe.planner.problem import Problem, objective_ns

LARGEST_COEFFICIENT = 1e4

Arc = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What the engine found.

    ``status`` is ``optimal`` or ``feasible`` (stopped by the time limit), ``bound_ns`` the engine's own
    proof that no objective is lower, ``gap`` (objective - bound) / objective as the engine has it.
    """

    bounds: tuple[int, ...]
    status: str
    objective_ns: int
    bound_ns: int
    gap: float


def solve(
    problem: Problem, reduction: Reduction, *, engine: str = "highs", time_limit_s: float = 30.0
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
    programme = build(problem, reduction)
    answer = run_highs(programme.model, time_limit_s=time_limit_s)
    if answer is None:
        return None
    bounds = _path(programme.chosen, problem.stages)
    objective = objective_ns(problem, bounds)
    return Solution(
        bounds=bounds,
        status="optimal" if answer.optimal else "feasible",
        objective_ns=objective,
        bound_ns=min(objective, round(answer.bound * programme.unit_ns)),
        gap=answer.gap,
    )


@dataclass(frozen=True, kw_only=True)
class Programme:
    """The model in PuLP, its binaries by (stage, begin, end), and the nanoseconds of its unit of time."""

    model: Any
    chosen: Mapping[Arc, Any]
    unit_ns: float


def build(problem: Problem, reduction: Reduction) -> Programme:
    """Return the programme over the intervals that are left.

    Binary w[s,i,j] says that stage s is layers i to j - 1. With m micro-batches, T the pace, O the longest
    optimizer, y[t] whether tied parameter t is on two ranks, n[s] the in-flight micro-batches of stage s::

        minimise  (m-1) T + sum (compute[s,i,j] + hop[s,i,j]) w[s,i,j] + O + sum cost[t] y[t]

        C1  sum_j w[0,0,j] = 1                                          the first stage begins with layer 0
        C2  sum_i w[s,i,c] = sum_j w[s+1,c,j]                           each stage begins where one ended
        C3  T >= sum_ij pace[s,i,j] w[s,i,j]                            no stage and no link is faster than T
        C4  n[s] T >= sum_{r>=s} compute[r] w[r] + sum_{r>s} hop[r] w[r]   nor is a round trip, while 1F1B turns
        C5  O >= sum_ij optimizer[s,i,j] w[s,i,j]
        C6  sum_ij memory[s,i,j] w[s,i,j] <= limit[s]
        C7  y[t] >= reads[t,a] in stage s - reads[t,b] in stage s       for neighbouring readers a, b of t

    For a fixed T this is a shortest path, so the relaxation is tight.
    """
    import pulp

    arcs = {
        (stage, int(begin), int(end)): None
        for stage, mask in enumerate(reduction.kept)
        for begin, end in zip(*mask.nonzero(), strict=True)
    }
    unit = _unit_ns(problem, arcs)
    model = pulp.LpProblem("stages", pulp.LpMinimize)
    chosen = {arc: model.add_variable("w_{}_{}_{}".format(*arc), cat="Binary") for arc in arcs}
    low = reduction.pace_low_ns / unit
    pace = model.add_variable("T", lowBound=low)
    optimizer = model.add_variable("O", lowBound=0)
    split = {tied.name: model.add_variable(f"y_{index}", lowBound=0) for index, tied in enumerate(problem.tied)}
    by_stage: list[list[Arc]] = [[] for _ in range(problem.stages)]
    for arc in arcs:
        by_stage[arc[0]].append(arc)

    def total(tables: tuple[Any, ...], stage: int) -> Any:
        return pulp.lpSum(int(tables[stage][arc[1:]]) / unit * chosen[arc] for arc in by_stage[stage])

    compute = [total(problem.compute_ns, stage) for stage in range(problem.stages)]
    hop = [total(problem.hop_ns, stage) for stage in range(problem.stages)]
    tied_cost = pulp.lpSum(tied.cost_ns / unit * split[tied.name] for tied in problem.tied)
    model += (problem.micro_batches - 1) * pace + pulp.lpSum(compute) + pulp.lpSum(hop) + optimizer + tied_cost
    model += pulp.lpSum(chosen[arc] for arc in by_stage[0]) == 1, "C1"
    _add_flow(model, chosen, by_stage)
    for stage in range(problem.stages):
        model += pace >= total(problem.pace_ns, stage), f"C3_{stage}"
        if problem.turns(stage):
            round_trip = pulp.lpSum(compute[stage:]) + pulp.lpSum(hop[stage + 1 :])
            model += problem.in_flight[stage] * pace >= round_trip, f"C4_{stage}"
        model += optimizer >= total(problem.optimizer_ns, stage), f"C5_{stage}"
        _add_memory(model, problem, chosen, by_stage[stage], stage)
    _add_tied(model, problem, chosen, by_stage, split)
    return Programme(model=model, chosen=chosen, unit_ns=unit)


def _add_flow(model: Any, chosen: Mapping[Arc, Any], by_stage: list[list[Arc]]) -> None:
    import pulp

    for stage in range(len(by_stage) - 1):
        ends: dict[int, list[Any]] = {}
        begins: dict[int, list[Any]] = {}
        for arc in by_stage[stage]:
            ends.setdefault(arc[2], []).append(chosen[arc])
        for arc in by_stage[stage + 1]:
            begins.setdefault(arc[1], []).append(chosen[arc])
        for cut in sorted({*ends, *begins}):
            model += pulp.lpSum(ends.get(cut, ())) == pulp.lpSum(begins.get(cut, ())), f"C2_{stage}_{cut}"


def _add_memory(model: Any, problem: Problem, chosen: Mapping[Arc, Any], arcs: list[Arc], stage: int) -> None:
    import pulp

    limit = problem.limits[stage]
    if limit is not None:
        needed = pulp.lpSum(int(problem.memory_bytes[stage][arc[1:]]) / limit * chosen[arc] for arc in arcs)
        model += needed <= 1, f"C6_{stage}"


def _add_tied(
    model: Any, problem: Problem, chosen: Mapping[Arc, Any], by_stage: list[list[Arc]], split: Mapping[str, Any]
) -> None:
    import pulp

    def reads(layer: int, stage: int) -> Any:
        return pulp.lpSum(chosen[arc] for arc in by_stage[stage] if arc[1] <= layer < arc[2])

    for index, tied in enumerate(problem.tied):
        for first, second in pairwise(tied.layers):
            for stage in range(problem.stages):
                apart = reads(first, stage) - reads(second, stage)
                model += split[tied.name] >= apart, f"C7_{index}_{first}_{stage}"


def _unit_ns(problem: Problem, arcs: Mapping[Arc, None]) -> float:
    """Return the unit that keeps the times of the programme within the engine's tolerances."""
    tables = (problem.compute_ns, problem.hop_ns, problem.pace_ns, problem.optimizer_ns)
    longest = max((int(table[arc[0]][arc[1:]]) for arc in arcs for table in tables), default=1)
    return max(longest, 1) / LARGEST_COEFFICIENT


def _path(chosen: Mapping[Arc, Any], stages: int) -> tuple[int, ...]:
    """Return the bounds of the intervals that are chosen."""
    taken = {arc[0]: arc for arc, variable in chosen.items() if variable.varValue > 0.5}
    return (0, *(taken[stage][2] for stage in range(stages)))
