"""One problem is solved: the dynamic programme's split is the incumbent, the integer programme has the last word."""

import time
from dataclasses import dataclass

from autopipe.planner.bounds import Frontier, frontier, reduce
from autopipe.planner.ilp import Solution, solve
from autopipe.planner.problem import Problem, objective_ns

WITHOUT_ENGINE = "dynamic programme"


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The best split by the solver's objective, who found it, and other splits that are worth a simulation."""

    solution: Solution
    engine: str
    also: tuple[tuple[int, ...], ...]


def solve_problem(problem: Problem, deadline: float, engine: str) -> Solved:
    """Return the solution of a ``problem`` that has one.

    Where the engine fails, or no time is left for it, the dynamic programme's split stands in with the
    dynamic programme's bound, and says so by its engine.

    Parameters
    ----------
    deadline : float
        On the clock of `time.monotonic`.
    """
    known = frontier(problem)
    assert known is not None, "only problems with an allowed split are solved"
    incumbent_ns = objective_ns(problem, known.best.bounds)
    also = (known.best.bounds, known.fastest.bounds)
    left = deadline - time.monotonic()
    if left <= 0:
        return Solved(solution=_stand_in(problem, known, "feasible"), engine=WITHOUT_ENGINE, also=also)
    found = solve(problem, reduce(problem, known, incumbent_ns), engine=engine, time_limit_s=left)
    if found is None:
        status = "feasible" if time.monotonic() >= deadline else "heuristic"
        return Solved(solution=_stand_in(problem, known, status), engine=WITHOUT_ENGINE, also=also)
    if found.objective_ns > incumbent_ns:
        found = Solution(
            bounds=known.best.bounds,
            status=found.status,
            objective_ns=incumbent_ns,
            bound_ns=min(found.bound_ns, incumbent_ns),
            gap=max(0.0, 1 - found.bound_ns / incumbent_ns),
        )
    return Solved(solution=found, engine=engine, also=also)


def _stand_in(problem: Problem, known: Frontier, status: str) -> Solution:
    objective = objective_ns(problem, known.best.bounds)
    bound = (problem.micro_batches - 1) * known.best.pace_ns + known.best.total_ns
    return Solution(
        bounds=known.best.bounds,
        status=status,
        objective_ns=objective,
        bound_ns=bound,
        gap=(objective - bound) / objective if objective else 0.0,
    )
