"""The search over micro-batch sizes and schedules: bound, prune, solve, simulate, keep the best."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopipe.costs.size import at_size
from autopipe.costs.stages import Intervals
from autopipe.costs.validity import check_profile
from autopipe.documents.plan import Alternative, Certificate, Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InfeasibleError, InputError
from autopipe.hardware.cluster import Cluster, check_cluster
from autopipe.planner.bounds import frontier
from autopipe.planner.engine import ENGINES
from autopipe.planner.explain import binding_sentence, lost_because, on_fewer
from autopipe.planner.problem import Problem, make_problem
from autopipe.planner.request import check_magnitude, micro_batch_sizes, stage_count, with_profiled
from autopipe.planner.score import PREFERENCE, Candidate, score, write_plan
from autopipe.planner.shortage import infeasible_message, shortage
from autopipe.planner.solved import Solved, solve_problem
from autopipe.planner.step_bound import tightest

MOST_ALTERNATIVES = 12


def plan(
    profile: Profile,
    cluster: Cluster,
    *,
    batch_size: int,
    micro_batch_size: int | None = None,
    schedule: str | None = None,
    stages: int | None = None,
    time_limit_s: float = 30.0,
    engine: str = "highs",
) -> Plan:
    """Return the stage boundaries, micro-batch size and schedule of the shortest step within memory.

    For every number of micro-batches, the smallest size that gives it between the smallest and the largest
    profiled one is searched, under 1F1B and GPipe, one stage per device. Fewer devices are timed too and
    listed among the alternatives; the plan uses all of them even where that does not pay, and says so.

    Parameters
    ----------
    cluster : Cluster
        Memory and links that it leaves open are taken from the profile.
    batch_size : int
        Samples of one step.
    micro_batch_size, schedule, stages : optional
        Fix what would be searched; ``stages`` uses that many devices, the first ones.
    time_limit_s : float
        For the whole search; the best plan found by then is returned, with its true gap.
    engine : str
        What solves the integer programmes.

    Raises
    ------
    InputError
        If an argument cannot be used.
    DocumentError
        If the profile cannot be used.
    InfeasibleError
        If no plan fits; the message says what needs how much and what would fit.

    Notes
    -----
    Deterministic unless the time limit ends the search.
    """
    check_profile(profile)
    check_cluster(cluster)
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}: choose from {', '.join(ENGINES)}.")
    if schedule is not None and schedule not in PREFERENCE:
        raise InputError(f"schedule {schedule!r} cannot be planned: choose from {', '.join(PREFERENCE)}.")
    cluster = with_profiled(cluster, profile)
    count = stage_count(profile, cluster, stages)
    sizes = micro_batch_sizes(profile, batch_size, micro_batch_size)
    check_magnitude(profile, batch_size)
    deadline = time.monotonic() + max(0.0, time_limit_s)
    tables = tuple(Intervals.of(at_size(profile, size)) for size in sizes)
    schedules = PREFERENCE if schedule is None else (schedule,)
    choices = _choices(tables, cluster, schedules, count, batch_size)
    branches, unfit = _bounded(choices)
    if not branches:
        raise InfeasibleError(infeasible_message([choice.problem() for choice in choices]))
    best, proof, candidates = _search(branches, deadline, engine)
    fewer = [] if stages else list(_fewer_devices(tables, cluster, schedules[:1], count, batch_size))
    others = [_alternative(other, reason=lost_because(other, best)) for other in candidates if other is not best]
    others.sort(key=lambda other: (other.step_ns, other.micro_batch_size, other.schedule))
    others += [_unfit(choice.problem()) for choice in unfit[:MOST_ALTERNATIVES]]
    return write_plan(
        best,
        batch_size=batch_size,
        certificate=_certify(best, proof, min(branch.bound_ns for branch in branches)),
        binding=binding_sentence(best, fewer),
        alternatives=(*fewer, *others[:MOST_ALTERNATIVES]),
    )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A micro-batch size and schedule on a number of devices; its tables are made when they are needed."""

    intervals: Intervals
    cluster: Cluster
    schedule: str
    stages: int
    micro_batches: int

    def problem(self) -> Problem:
        """Return the problem of cutting the stages."""
        return make_problem(
            self.intervals,
            self.cluster,
            schedule=self.schedule,
            stages=self.stages,
            micro_batches=self.micro_batches,
        )


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A choice for which something fits: a time under all its steps, and the split that has this bound."""

    choice: Choice
    bound_ns: int
    tightest: tuple[int, ...]


def _choices(
    tables: Sequence[Intervals], cluster: Cluster, schedules: Sequence[str], stages: int, batch_size: int
) -> list[Choice]:
    return [
        Choice(
            intervals=intervals,
            cluster=cluster,
            schedule=name,
            stages=stages,
            micro_batches=-(-batch_size // intervals.sized.micro_batch_size),
        )
        for intervals in tables
        for name in schedules
    ]


def _bounded(choices: Sequence[Choice]) -> tuple[list[Branch], list[Choice]]:
    """Return the choices for which something fits, the lowest bound first, and the others."""
    branches, unfit = [], []
    for choice in choices:
        found = tightest(choice.problem())
        if found is None:
            unfit.append(choice)
        else:
            branches.append(Branch(choice=choice, bound_ns=found[0], tightest=found[1]))
    branches.sort(key=lambda branch: (branch.bound_ns, PREFERENCE.index(branch.choice.schedule)))
    return branches, unfit


@dataclass(frozen=True, kw_only=True)
class Proof:
    """How the best candidate's branch was solved, and whether the clock ended the search before all were."""

    solved: Solved
    cut_short: bool


def _search(branches: Sequence[Branch], deadline: float, engine: str) -> tuple[Candidate, Proof, list[Candidate]]:
    """Return the best candidate, its proof, and one candidate of each branch that was looked at.

    Branches whose bound is above the best step are not solved; a few are scored, to be shown.
    """
    best: Candidate | None = None
    best_solved: Solved | None = None
    candidates: list[Candidate] = []
    cut_short = False
    for branch in branches:
        hopeless = best is not None and branch.bound_ns > best.step_ns
        late = best is not None and time.monotonic() > deadline
        if late or (hopeless and len(candidates) > MOST_ALTERNATIVES):
            cut_short |= not hopeless
            continue
        problem = branch.choice.problem()
        splits = {branch.tightest}
        solved = None
        if not hopeless:
            solved = solve_problem(problem, deadline, engine)
            splits |= {solved.solution.bounds, *solved.also}
        here = min((score(problem, bounds) for bounds in sorted(splits)), key=lambda candidate: candidate.rank)
        candidates.append(here)
        if solved is not None and (best is None or here.rank < best.rank):
            best, best_solved = here, solved
    assert best is not None
    assert best_solved is not None
    return best, Proof(solved=best_solved, cut_short=cut_short), candidates


def _certify(best: Candidate, proof: Proof, step_bound_ns: int) -> Certificate:
    assert step_bound_ns <= best.step_ns, "no step can be under the bound"
    solution = proof.solved.solution
    return Certificate(
        status="feasible" if proof.cut_short and solution.status == "optimal" else solution.status,
        engine=proof.solved.engine,
        objective_ns=solution.objective_ns,
        objective_bound_ns=solution.bound_ns,
        solver_gap=solution.gap,
        step_bound_ns=step_bound_ns,
        gap=(best.step_ns - step_bound_ns) / step_bound_ns if step_bound_ns else 0.0,
    )


def _fewer_devices(
    tables: Sequence[Intervals], cluster: Cluster, schedules: Sequence[str], count: int, batch_size: int
) -> Iterator[Alternative]:
    """Yield the best plan of the dynamic programme for each halving of the devices, down to one."""
    stages = count // 2
    while stages >= 1:
        branches, unfit = _bounded(_choices(tables, cluster, schedules, stages, batch_size))
        best: Candidate | None = None
        for branch in branches:
            if best is not None and branch.bound_ns > best.step_ns:
                break
            problem = branch.choice.problem()
            known = frontier(problem)
            assert known is not None
            found = [score(problem, bounds) for bounds in sorted({known.best.bounds, branch.tightest})]
            best = min([*found, *([best] if best else [])], key=lambda candidate: candidate.rank)
        yield _unfit(unfit[0].problem()) if best is None else _alternative(best, reason=on_fewer(stages))
        stages //= 2


def _unfit(problem: Problem) -> Alternative:
    return Alternative(
        pipeline_size=problem.stages,
        micro_batch_size=problem.micro_batch_size,
        micro_batches=problem.micro_batches,
        schedule=problem.schedule,
        step_ns=None,
        reason=shortage(problem).in_words(problem),
    )


def _alternative(candidate: Candidate, *, reason: str) -> Alternative:
    problem = candidate.problem
    return Alternative(
        pipeline_size=problem.stages,
        micro_batch_size=problem.micro_batch_size,
        micro_batches=problem.micro_batches,
        schedule=problem.schedule,
        step_ns=candidate.step_ns,
        bounds=candidate.bounds,
        reason=reason,
    )
