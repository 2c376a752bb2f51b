"""The engine that solves the integer programme: HiGHS, through PuLP, without a word on the terminal."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ENGINES = ("highs", "scipy", "cbc")
FEASIBLE = 2
ENDED = {"Optimal", "Infeasible", "Primal infeasible or unbounded", "Time limit reached", "Solution limit reached"}


class EngineError(RuntimeError):
    """An engine ended in a way that says nothing about the programme."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How an engine ended: whether it proved its solution the best, its bound, its gap. Units are the model's."""

    optimal: bool
    bound: float
    gap: float
    engine: str = "highs"


def run_highs(model: Any, *, time_limit_s: float, gap: float = 0.0, nodes: int | None = None) -> Answer | None:
    """Solve a PuLP model in place; return None if the engine found no solution.

    One thread, fixed seed; it ends once its relative gap is at most ``gap``, or after ``nodes`` branches of its
    search: the same model gives the same answer, unless the time limit ends the search. Bound and gap are the
    engine's own: PuLP does not pass them on, and it reports a time limit without any solution as a success.

    Raises
    ------
    EngineError
        If the engine ends in any other way than with an answer or the time limit.
    """
    import pulp

    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        timeLimit=max(0.05, time_limit_s),
        gapRel=gap,
        gapAbs=0.0,
        random_seed=0,
        **({} if nodes is None else {"mip_max_nodes": nodes}),
    )
    with _quiet_output():
        # highspy 1.16 prints a banner when its object is made, before any option can be set (HiGHS issue 1932).
        solver.createAndConfigureSolver(model)
    solver.buildSolverModel(model)
    solver.callSolver(model)
    status, solution_status = solver.findSolutionValues(model)
    model.assignStatus(status, solution_status)
    found = model.solverModel
    ended = found.modelStatusToString(found.getModelStatus())
    if ended not in ENDED:
        raise EngineError(f"HiGHS ended with {ended!r}")
    info = found.getInfo()
    if int(info.primal_solution_status) != FEASIBLE or not math.isfinite(info.mip_dual_bound):
        return None
    # PuLP does not hand the objective's constant to HiGHS.
    bound = float(info.mip_dual_bound) + float(model.objective.constant)
    return Answer(optimal=ended == "Optimal", bound=bound, gap=max(0.0, float(info.mip_gap)))


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
