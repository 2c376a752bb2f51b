"""The engine that solves the integer programme: HiGHS, through PuLP, without a word on the terminal."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ENGINES = ("highs",)
FEASIBLE = 2


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How the engine ended: whether it proved its solution the best, its bound, its gap. Units are the model's."""

    optimal: bool
    bound: float
    gap: float


def run_highs(model: Any, *, time_limit_s: float) -> Answer | None:
    """Solve a PuLP model in place; return None if the engine found no solution.

    One thread, fixed seed, no tolerated gap: the same model gives the same answer, unless the time limit
    ends the search. Bound and gap are the engine's own: PuLP does not pass them on, and it reports a time
    limit without any solution as a success.
    """
    import pulp

    solver = pulp.HiGHS(msg=False, threads=1, timeLimit=max(0.05, time_limit_s), gapRel=0.0, gapAbs=0.0, random_seed=0)
    with _quiet_output():
        # highspy 1.16 prints a banner when its object is made, before any option can be set (HiGHS issue 1932).
        solver.createAndConfigureSolver(model)
    solver.buildSolverModel(model)
    solver.callSolver(model)
    status, solution_status = solver.findSolutionValues(model)
    model.assignStatus(status, solution_status)
    found = model.solverModel
    info = found.getInfo()
    if int(info.primal_solution_status) != FEASIBLE or not math.isfinite(info.mip_dual_bound):
        return None
    optimal = found.modelStatusToString(found.getModelStatus()) == "Optimal"
    return Answer(optimal=optimal, bound=float(info.mip_dual_bound), gap=max(0.0, float(info.mip_gap)))


@contextmanager
def _quiet_output() -> Iterator[None]:
    """Send what C code writes to standard output nowhere for a moment."""
    try:
        kept = os.dup(1)
    except OSError:
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
