"""One problem is solved: the dynamic programme's split is the incumbent, the integer programme has the last word."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from autopipe.planner.bounds import Frontier, everything, frontier, reduce
from autopipe.planner.engine import EngineError
from autopipe.planner.ilp import Solution, solve
from autopipe.planner.problem import Problem, objective_ns, ranks_of
from autopipe.planner.rank_rows import Arc, overflow_bytes

WITHOUT_ENGINE = "dynamic programme"
CEILINGS = (1.02, 1.1, 1.5)


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The best split by the solver's objective, who found it, and other splits that are worth a simulation."""

    solution: Solution
    engine: str
    also: tuple[tuple[int, ...], ...]


def solve_problem(problem: Problem, deadline: float, engine: str) -> Solved | None:
    """Return the solution of a ``problem``, None if it has none, or none was found in time.

    Where the engine fails, or no time is left for it, the dynamic programme's split stands in with the
    dynamic programme's bound, and says so by its engine.

    Parameters
    ----------
    deadline : float
        On the clock of `time.monotonic`.
    """
    known = frontier(problem)
    if known is None:
        return None
    also = tuple(split.bounds for split in (known.best, known.fastest) if keeps(problem, split.bounds))
    found = _by_engine(problem, known, also, deadline, engine)
    if found is None and not also:
        return None
    if found is None:
        status = "feasible" if time.monotonic() >= deadline else "heuristic"
        return Solved(solution=_stand_in(problem, known, also[0], status), engine=WITHOUT_ENGINE, also=also)
    incumbent = min((objective_ns(problem, bounds) for bounds in also), default=found.objective_ns)
    if found.objective_ns > incumbent:
        bounds = next(bounds for bounds in also if objective_ns(problem, bounds) == incumbent)
        found = Solution(
            bounds=bounds,
            levels=levels_of(problem, bounds),
            status=found.status,
            objective_ns=incumbent,
            bound_ns=min(found.bound_ns, incumbent),
            gap=max(0.0, 1 - found.bound_ns / incumbent),
            engine=found.engine,
        )
    return Solved(solution=found, engine=found.engine, also=also)


def keeps(problem: Problem, bounds: Sequence[int]) -> bool:
    """Tell whether a split of allowed intervals keeps what couples stages: memory of a rank, layers together."""
    if any(len(ranks_of(problem, bounds, pair)) > 1 for pair in problem.together):
        return False
    return not problem.coupled or overflow_bytes(problem, arcs_at(problem, bounds)) == 0


def arcs_at(problem: Problem, bounds: Sequence[int], levels: Sequence[int] = ()) -> tuple[Arc, ...]:
    """Return the stages of a split as arcs, at the problem's own levels if none are given."""
    levels = levels or levels_of(problem, bounds)
    return tuple(Arc(s, bounds[s], bounds[s + 1], level) for s, level in enumerate(levels))


def levels_of(problem: Problem, bounds: Sequence[int]) -> tuple[int, ...]:
    """Return the problem's own level of each stage of a split."""
    return tuple(int(problem.level[s][bounds[s], bounds[s + 1]]) for s in range(problem.stages))


def _by_engine(
    problem: Problem, known: Frontier, also: Sequence[tuple[int, ...]], deadline: float, engine: str
) -> Solution | None:
    """Return the engine's solution among the intervals that a split as good as the incumbent can have.

    Where nothing is known that keeps to the memory of ranks with several stages, ever higher ceilings take the
    incumbent's place; what is found above one becomes the next.
    """
    bound = problem.weight * known.best.pace_ns + known.best.total_ns
    ceilings = [round(bound * factor) for factor in CEILINGS]
    if also:
        ceilings = [min(objective_ns(problem, bounds) for bounds in also)]
    found = None
    while ceilings:
        ceiling = ceilings.pop(0)
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            better = solve(known.problem, reduce(known, ceiling), engine=engine, time_limit_s=left)
        except EngineError:
            break  # all of them failed, and each has warned: the dynamic programme's split stands in
        if better is None:
            continue
        if found is None or better.objective_ns < found.objective_ns:
            found = better
        if better.objective_ns <= ceiling or better.status != "optimal":
            return found
        ceilings = [better.objective_ns]
    if found is None and not also and time.monotonic() < deadline:
        found = solve(problem, everything(problem), engine=engine, time_limit_s=deadline - time.monotonic())
    return found


def _stand_in(problem: Problem, known: Frontier, bounds: tuple[int, ...], status: str) -> Solution:
    objective = objective_ns(problem, bounds)
    bound = problem.weight * known.best.pace_ns + known.best.total_ns
    return Solution(
        bounds=bounds,
        levels=levels_of(problem, bounds),
        status=status,
        objective_ns=objective,
        bound_ns=bound,
        gap=(objective - bound) / objective if objective else 0.0,
        engine=WITHOUT_ENGINE,
    )
