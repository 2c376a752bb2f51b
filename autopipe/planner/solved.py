"""One problem is solved: the dynamic programme's split is the incumbent, the integer programme has the last word."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autopipe.planner.bounds import Frontier, Reduction, everything, frontier, reduce
from autopipe.planner.deadline import Deadline
from autopipe.planner.engine import EngineError
from autopipe.planner.ilp import Solution, solve
from autopipe.planner.problem import Problem, objective_ns, ranks_of, with_shares
from autopipe.planner.rank_rows import Arc, extra_ns, overflow_bytes

WITHOUT_ENGINE = "dynamic programme"
CEILINGS = (1.02, 1.1, 1.5)
LEAST_SHARE = 0.8
COUPLED_ENTRIES = 500_000
COUPLED_ENTRIES_LATER = 100_000
COUPLED_WORK = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The best split by the solver's objective, who found it, and other splits that are worth a simulation."""

    solution: Solution
    engine: str
    also: tuple[tuple[int, ...], ...]


def solve_problem(problem: Problem, deadline: Deadline, engine: str, *, best_ns: int | None = None) -> Solved | None:
    """Return the solution of a ``problem``, None if it has none, or none was found in time.

    Where stages share the memory of ranks, None need not mean that nothing fits: work is limited.

    Where the engine fails, or no time is left for it, the dynamic programme's split stands in with the
    dynamic programme's bound, and says so by its engine.

    Parameters
    ----------
    best_ns : int, optional
        A step that is known: what is hardly shorter, by its estimate, need not be found.
    """
    known = frontier(problem)
    if known is None:
        return None
    also = tuple(split.bounds for split in (known.best, known.fastest) if keeps(problem, split.bounds))
    incumbents = [_stand_in(problem, known, arcs_at(problem, bounds)) for bounds in also]
    if problem.coupled and not also:
        incumbents += by_shares(problem, known)
    incumbent = min(incumbents, key=lambda one: one.objective_ns, default=None)
    found = _by_engine(problem, known, incumbent, deadline, engine, best_ns)
    if found is None and incumbent is None:
        return None
    if found is None:
        assert incumbent is not None
        late = deadline.is_over or problem.coupled
        found = replace(incumbent, status="feasible" if late else "heuristic")
    elif incumbent is not None and found.objective_ns > incumbent.objective_ns:
        bound = min(found.bound_ns, incumbent.objective_ns)
        gap = max(0.0, 1 - bound / incumbent.objective_ns)
        found = replace(incumbent, status=found.status, engine=found.engine, bound_ns=bound, gap=gap)
    return Solved(solution=found, engine=found.engine, also=also)


def by_shares(problem: Problem, known: Frontier) -> list[Solution]:
    """Return a split that fits with an equal share of its rank's memory for each stage, if there is one."""
    shared = with_shares(problem)
    found = frontier(shared)
    if found is None or any(len(ranks_of(problem, found.best.bounds, pair)) > 1 for pair in problem.together):
        return []
    return [_stand_in(problem, known, arcs_at(shared, found.best.bounds))]


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


def is_far(objective_ns: int, best_ns: int | None) -> bool:
    """Tell whether an estimate is so long that no step shorter than ``best_ns`` comes of it.

    Steps of `LEAST_SHARE` of their estimate were seen, shorter ones not.
    """
    return best_ns is not None and LEAST_SHARE * objective_ns > best_ns


def _by_engine(
    problem: Problem,
    known: Frontier,
    incumbent: Solution | None,
    deadline: Deadline,
    engine: str,
    best_ns: int | None,
) -> Solution | None:
    """Return the engine's solution among the intervals that a split as good as the incumbent can have.

    Where nothing is known that keeps to the memory of ranks with several stages, ever higher ceilings take the
    incumbent's place; what is found above one becomes the next.
    """
    bound = problem.weight * known.best.pace_ns + known.best.total_ns
    ceilings = [round(bound * factor) for factor in CEILINGS] if incumbent is None else [incumbent.objective_ns]
    ceilings = [ceiling for ceiling in ceilings if incumbent is not None or not is_far(ceiling, best_ns)]
    found = None
    try:
        while ceilings and (left := deadline.left_s) > 0:
            ceiling = ceilings.pop(0)
            reduction = reduce(known, ceiling)
            if (nodes := _nodes(problem, reduction, best_ns)) == 0:
                return found
            better = solve(known.problem, reduction, engine=engine, time_limit_s=left, nodes=nodes)
            if better is None:
                continue
            if found is None or better.objective_ns < found.objective_ns:
                found = better
            if better.objective_ns <= ceiling or better.status != "optimal":
                return found
            ceilings = [better.objective_ns]
        left = deadline.left_s
        if found is None and incumbent is None and best_ns is None and left > 0:
            reduction = everything(problem)
            nodes = _nodes(problem, reduction)
            found = None if nodes == 0 else solve(problem, reduction, engine=engine, time_limit_s=left, nodes=nodes)
    except EngineError:
        return found  # all engines failed, and each has warned: the dynamic programme's split stands in
    return found


def _nodes(problem: Problem, reduction: Reduction, best_ns: int | None = None) -> int | None:
    """Return how many nodes the engine may search, None for any number, 0 where that would take too long.

    Where stages share the memory of ranks, the relaxation is weak, and a limit of time would make the plan depend on
    the machine's load: the limit is one of work, the more choices in more rows of memory, the fewer nodes. Where a
    plan is known already there is less to win.
    """
    if not problem.coupled:
        return None
    entries = len(reduction.arcs) * sum(map(len, problem.moments))
    most = COUPLED_ENTRIES if best_ns is None else COUPLED_ENTRIES_LATER
    return 0 if entries > most else COUPLED_WORK // max(1, entries)


def _stand_in(problem: Problem, known: Frontier, arcs: Sequence[Arc]) -> Solution:
    """Return a split of the dynamic programme as a solution, with the dynamic programme's bound."""
    bounds = (0, *(arc.end for arc in arcs))
    objective = objective_ns(problem, bounds, [extra_ns(problem, arc) for arc in arcs])
    bound = problem.weight * known.best.pace_ns + known.best.total_ns
    return Solution(
        bounds=bounds,
        levels=tuple(arc.level for arc in arcs),
        status="heuristic",
        objective_ns=objective,
        bound_ns=bound,
        gap=(objective - bound) / objective if objective else 0.0,
        engine=WITHOUT_ENGINE,
    )
