"""A schedule is fitted to the best stages, where their times are unequal enough to gain by it."""

from autopipe.errors import InfeasibleError
from autopipe.planner.score import Candidate, with_schedule
from autopipe.planner.step_bound import any_schedule_bound_ns
from autopipe.simulator.events import run
from autopipe.simulator.fit import fit

MOST_ACTIONS = 200_000
GAIN = 0.001


def try_fitted(best: Candidate, *, asked: bool) -> tuple[Candidate | None, bool]:
    """Return ``best`` under a fitted schedule if that is better, and whether one was looked for.

    It simulates some tens of schedules, too many for long steps unless it is ``asked`` for.
    """
    problem = best.problem
    tries = 2 * problem.ranks + 10
    if problem.ranks == 1 or (not asked and tries * best.costed.size > MOST_ACTIONS):
        return None, False
    if not asked and bound_of_stages(best) >= best.step_ns * (1 - GAIN):
        return None, False
    try:
        schedule = fit(
            best.stages,
            best.edges,
            problem.stage_ranks,
            problem.micro_batches,
            memory_bytes=problem.limits,
            conditions=problem.conditions,
        )
    except InfeasibleError:
        return None, False
    result = run(schedule, best.stages, best.edges, conditions=problem.conditions, with_spans=False)
    fitted = with_schedule(best.costed, schedule, result)
    if asked or (fitted.fits and fitted.step_ns < best.step_ns * (1 - GAIN)):
        return fitted, True
    return None, True


def bound_of_stages(best: Candidate) -> int:
    """Return a time under the step of every schedule of the same stages."""
    problem = best.problem
    return any_schedule_bound_ns(problem.stage_ranks, problem.micro_batches, best.stages, best.edges, problem.limits)
