"""Engines that solve an integer programme, one after the other until one answers: HiGHS, scipy's milp, CBC."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from autopipe.errors import InputError
from autopipe.planner.deadline import Deadline
from autopipe.planner.engine import ENGINES, Answer, EngineError, run_highs

INTEGER = "Integer"
LEAST_TIME_S = 0.05


def run(model: Any, *, engine: str, time_limit_s: float, gap: float = 0.0, nodes: int | None = None) -> Answer | None:
    """Solve a PuLP model in place with ``engine``, or where that fails with the next one.

    None if the model has no solution, or none was found in time. Who answered is in the answer, and who failed,
    and of what, is warned of.

    Raises
    ------
    InputError
        If the engine is unknown.
    EngineError
        If every engine failed.
    """
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}: choose from {', '.join(ENGINES)}.")
    deadline = Deadline.after(time_limit_s)
    failures = []
    for name in (engine, *(other for other in ENGINES if other != engine)):
        try:
            return RUNNERS[name](model, time_limit_s=max(LEAST_TIME_S, deadline.left_s), gap=gap, nodes=nodes)
        except Exception as error:
            # An engine is a program of others' that may end in any way; its failure is a reason to ask the next.
            failures.append(f"{name} failed ({type(error).__name__}: {str(error) or 'without a word'})")
            warnings.warn(f"engine {failures[-1]}; the next one is tried.", RuntimeWarning, stacklevel=2)
    raise EngineError(f"no engine solved the programme: {'; '.join(failures)}.")


def run_scipy(model: Any, *, time_limit_s: float, gap: float = 0.0, nodes: int | None = None) -> Answer | None:
    """Solve a PuLP model in place with `scipy.optimize.milp`; as `run_highs`."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    variables = model.variables()
    column = {variable.name: at for at, variable in enumerate(variables)}
    cost = np.zeros(len(variables))
    for variable, factor in model.objective.items():
        cost[column[variable.name]] += factor
    result = milp(
        cost,
        integrality=np.array([variable.cat == INTEGER for variable in variables]),
        bounds=Bounds(
            np.array([-np.inf if variable.lowBound is None else variable.lowBound for variable in variables]),
            np.array([np.inf if variable.upBound is None else variable.upBound for variable in variables]),
        ),
        constraints=LinearConstraint(*_rows(model, column)),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap} | ({} if nodes is None else {"node_limit": nodes}),
    )
    if result.status not in (0, 1, 2):
        raise EngineError(result.message)
    if result.x is None:
        return None
    for variable, value in zip(variables, result.x, strict=True):
        variable.varValue = float(value)
    constant = float(model.objective.constant)
    bound = float(result.mip_dual_bound) + constant
    if not math.isfinite(bound):
        return None
    return Answer(optimal=result.status == 0, bound=bound, gap=max(0.0, float(result.mip_gap or 0.0)), engine="scipy")


def run_cbc(model: Any, *, time_limit_s: float, gap: float = 0.0, nodes: int | None = None) -> Answer | None:
    """Solve a PuLP model in place with CBC, a process of its own; as `run_highs`.

    PuLP does not pass on CBC's bound: where CBC proved its solution, that is the bound, and else there is none,
    which for the times that are made small here is 0.
    """
    import pulp

    with warnings.catch_warnings():
        # PuLP 3.3.2 announces that version 4 will have CBC in a package beside it.
        warnings.simplefilter("ignore", DeprecationWarning)
        solver = pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=time_limit_s, gapRel=gap, maxNodes=nodes)
    model.solve(solver)
    if model.sol_status == pulp.LpSolutionInfeasible or model.status == pulp.LpStatusInfeasible:
        return None
    if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    value = float(pulp.value(model.objective))
    optimal = model.sol_status == pulp.LpSolutionOptimal
    bound = value - gap * abs(value) if optimal else 0.0
    return Answer(optimal=optimal, bound=bound, gap=gap if optimal else 1.0, engine="cbc")


RUNNERS: dict[str, Callable[..., Answer | None]] = {
    "highs": lambda model, **options: run_highs(model, **options),
    "scipy": run_scipy,
    "cbc": run_cbc,
}


def _rows(model: Any, column: dict[str, int]) -> tuple[Any, Any, Any]:
    """Return matrix, lower and upper sides of a model's constraints."""
    from scipy.sparse import csr_matrix

    # A dictionary in some versions of PuLP 3, a method that returns a list in 3.3.2.
    constraints = model.constraints() if callable(model.constraints) else list(model.constraints.values())
    rows, columns, factors, lower, upper = [], [], [], [], []
    for at, constraint in enumerate(constraints):
        for variable, factor in constraint.items():
            rows.append(at)
            columns.append(column[variable.name])
            factors.append(factor)
        side = -constraint.constant
        lower.append(side if constraint.sense >= 0 else -np.inf)
        upper.append(side if constraint.sense <= 0 else np.inf)
    return csr_matrix((factors, (rows, columns)), shape=(len(lower), len(column))), lower, upper
