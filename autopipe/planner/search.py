"""The one search over replicas, pipeline sizes, micro-batches, schedules, boundaries and recompute."""

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from autopipe.costs.validity import check_profile
from autopipe.documents.plan import Certificate, Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InfeasibleError
from autopipe.hardware.cluster import Cluster, check_cluster
from autopipe.planner.bounds import frontier
from autopipe.planner.branch import Branch, Space
from autopipe.planner.cells import Tables, cells
from autopipe.planner.deadline import Deadline
from autopipe.planner.explain import binding_sentence
from autopipe.planner.fitting import bound_of_stages, try_fitted
from autopipe.planner.kind import Kind
from autopipe.planner.moves import improved
from autopipe.planner.request import Request, check_magnitude, check_request, shapes, with_profiled
from autopipe.planner.runners_up import quickly_scored, runners_up
from autopipe.planner.score import Candidate, Costed, costed, simulated
from autopipe.planner.shortage import infeasible_message
from autopipe.planner.solved import Solved, is_far, keeps, solve_problem
from autopipe.planner.what_if import what_if
from autopipe.planner.writing import write_plan
from autopipe.schedules.named import FITTED

MARGIN = 0.001
LARGE = 20_000
IMPROVED = 3
FIRST_TRIED = 8
MOST_IN_VAIN = 1


def plan(profile: Profile, cluster: Cluster, request: Request, *, deadline: Deadline | None = None) -> Plan:
    """Return the replicas, stages, micro-batch size, schedule and recompute of the shortest step within memory.

    All devices are used, p ranks times d replicas. For every number of micro-batches the smallest size that gives
    it is searched, under every schedule. What fewer devices would do is said, and not done.

    Parameters
    ----------
    cluster : Cluster
        Memory and links that it leaves open are taken from the profile.
    deadline : Deadline, optional
        By default the request's time limit from now on. What is not done by then is left out, except for finding a
        first plan.

    Raises
    ------
    InputError
        If the request cannot be used.
    DocumentError
        If the profile cannot be used.
    InfeasibleError
        If no plan fits; the message says what needs how much and what would fit.

    Notes
    -----
    Branches are looked at in the order of their bounds, first a cheap one and then that of `step_bound`; those that
    could shorten the best step by less than `MARGIN` are not solved. Deterministic unless the time limit ends the
    search.
    """
    deadline = deadline or Deadline.after(request.time_limit_s)
    check_profile(profile)
    check_cluster(cluster)
    check_request(request)
    cluster = with_profiled(cluster, profile)
    check_magnitude(profile, request.batch_size)
    tables = Tables(profile, request)
    found = cells(cluster, tables, request, shapes(profile, cluster, request))
    space = Space(profile=profile, cluster=cluster, request=request, wishes=request.wishes(profile), tables=tables)
    search = Search(space=space, deadline=deadline)
    search.run([branch for cell in found for branch in space.branches(cell)])
    if search.best is None:
        raise InfeasibleError(infeasible_message(space, [*search.unfit, *search.late], deadline))
    best = search.finish()
    others, fewer = runners_up(search, best)
    return write_plan(
        best,
        batch_size=request.batch_size // best.problem.grid.replicas,
        certificate=search.certificate(best),
        binding=binding_sentence(best, fewer),
        explanation=what_if(space, best, deadline),
        alternatives=(*fewer, *others),
    )


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best candidate of a branch, and how it was solved."""

    branch: Branch
    candidate: Candidate
    solved: Solved


@dataclass(kw_only=True)
class Search:
    """A search under way: what was found, what does not fit, what was left unsolved.

    Attributes
    ----------
    found : list of Found
        One for each branch that was solved.
    unfit : list of Branch
        Branches in which nothing fits.
    pruned : list of Branch
        Branches whose bound leaves nothing to win.
    late : list of Branch
        Branches that were left unsolved, for lack of time or of prospects; their bounds count in the certificate.
    deadline : Deadline
        As long as the last simulation of a branch took is kept for one more.
    """

    space: Space
    deadline: Deadline
    found: list[Found] = field(default_factory=list)
    unfit: list[Branch] = field(default_factory=list)
    pruned: list[Branch] = field(default_factory=list)
    late: list[Branch] = field(default_factory=list)
    fitted: bool = False
    best_ns: int | None = None
    _scored_s: float = 0.0
    _in_vain: dict[tuple[bool, int], int] = field(default_factory=dict)

    @property
    def best(self) -> Candidate | None:
        """The best candidate so far."""
        return min((one.candidate for one in self.found), key=lambda candidate: candidate.rank, default=None)

    def run(self, branches: Sequence[Branch]) -> None:
        """Look at ``branches`` in the order of their bounds, and solve those that may hold a shorter step.

        One of each pipeline size, with one stage a rank, is solved first, so that there soon is a step to beat.
        """
        queue = sorted(branches, key=lambda branch: branch.order)
        shapes = dict.fromkeys(branch.cell.grid.replicas for branch in queue if branch.kind.virtual == 1)
        for replicas in shapes:
            own = [b for b in queue if b.cell.grid.replicas == replicas and b.kind.virtual == 1]
            for branch in sorted(own, key=lambda branch: branch.outlook)[:FIRST_TRIED]:
                queue.remove(branch)
                if self._is_hopeless(branch) or (priced := self._priced(branch)) is None or self._is_hopeless(priced):
                    continue
                tightened = self._tightened(priced)
                if tightened is not None and self._look_into(tightened):
                    break
        waiting = [(branch.order, index, branch) for index, branch in enumerate(queue)]
        heapq.heapify(waiting)
        while waiting:
            _, index, branch = heapq.heappop(waiting)
            if self._is_hopeless(branch):
                continue
            if branch.tight:
                self._look_at(branch)
                continue
            if branch.priced and self._is_left(branch):
                continue
            closer = self._tightened(branch) if branch.priced else self._priced(branch)
            if closer is not None:
                heapq.heappush(waiting, (closer.order, index, closer))

    def _is_left(self, branch: Branch) -> bool:
        """Leave a branch whose stages share memory if several of its kind have won nothing; tell whether it was.

        Never while nothing at all is found: then every branch is tried.
        """
        if self.best_ns is None:
            return False
        look = branch.kind.virtual > 1, branch.cell.grid.replicas
        limited = any(device.memory_bytes is not None for device in branch.cell.grid.devices)
        if branch.kind.virtual == 1 or not limited or self._in_vain.get(look, 0) < MOST_IN_VAIN:
            return False
        self.late.append(branch)
        return True

    def _look_at(self, branch: Branch) -> None:
        """Solve a branch, and count whether it won anything."""
        if self._is_left(branch) or self._is_far(branch):
            return
        look = branch.kind.virtual > 1, branch.cell.grid.replicas
        before = self.best_ns
        self._look_into(branch)
        won = self.best_ns is not None and (before is None or self.best_ns < before)
        self._in_vain[look] = 0 if won else self._in_vain.get(look, 0) + 1

    def _is_far(self, branch: Branch) -> bool:
        """Leave a branch whose stages share memory if its estimate is too long to win anything; tell whether it was."""
        problem = self.space.problem(branch)
        if self.best_ns is None or not problem.coupled or (known := frontier(problem)) is None:
            return False
        far = is_far(problem.weight * known.best.pace_ns + known.best.total_ns, self.best_ns)
        if far:
            self.late.append(branch)
        return far

    def _is_hopeless(self, branch: Branch) -> bool:
        """Put a branch aside in which there is nothing to win, or for which no time is left; tell whether it was."""
        if self.best_ns is None:
            return False
        if branch.bound_ns > self.best_ns * (1 - MARGIN):
            self.pruned.append(branch)
        elif self.deadline.sooner(self._scored_s).is_over:
            self.late.append(branch)
        else:
            return False
        return True

    def _priced(self, branch: Branch) -> Branch | None:
        priced = self.space.priced(branch, self.best_ns)
        if priced is None:
            self.unfit.append(branch)
        return priced

    def _tightened(self, branch: Branch) -> Branch | None:
        tightened = self.space.tightened(branch)
        if tightened is None:
            self.unfit.append(branch)
        return tightened

    def _look_into(self, branch: Branch) -> bool:
        """Solve a branch, unless its tight bound says that nothing is to be won; tell whether something was found."""
        if self._is_hopeless(branch):
            return False
        found = self._solve(branch)
        if found is None:
            unsure = self.space.problem(branch).coupled
            (self.late if unsure else self.unfit).append(branch)
            return False
        self.found.append(found)
        step = found.candidate.step_ns
        self.best_ns = step if self.best_ns is None else min(self.best_ns, step)
        return True

    def _solve(self, branch: Branch) -> Found | None:
        """Return the best candidate of a branch by the simulator, None if it has none."""
        problem = self.space.problem(branch)
        deadline = self.deadline.sooner(self._scored_s)
        solved = solve_problem(problem, deadline, self.space.request.engine, best_ns=self.best_ns)
        if solved is None:
            return None
        solution = solved.solution
        choices: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        choices |= {(bounds, ()): None for bounds in (branch.split, *solved.also) if bounds and keeps(problem, bounds)}
        choices[solution.bounds, solution.levels] = None
        costs = [costed(problem, bounds, levels=levels) for bounds, levels in choices]
        costs = _worth_simulating(costs, deadline)
        begun = time.monotonic()
        candidate = min((simulated(one) for one in costs), key=lambda candidate: candidate.rank)
        self._scored_s = time.monotonic() - begun
        return Found(branch=branch, candidate=candidate, solved=solved)

    def finish(self) -> Candidate:
        """Return the best candidate after local moves, under the schedule that is fitted to it if that is better."""
        self._try_left()
        ranked = sorted(self.found, key=lambda one: one.candidate.rank)
        most = IMPROVED if ranked[0].candidate.costed.size <= LARGE else 1
        for one in ranked[:most]:
            moved = improved(one.candidate, self.deadline)
            self._put(one.candidate, moved)
        best = self.best
        assert best is not None
        asked = self.space.request.schedule == FITTED
        if asked or (self.space.request.schedule is None and not self.deadline.is_over):
            fitted, self.fitted = try_fitted(best, asked=asked)
            if fitted is not None:
                self._put(best, fitted)
                return fitted
        return best

    def _try_left(self) -> None:
        """Simulate the split of the first branch left of every kind, where that is quick: it may be the best yet.

        The dynamic programme's word on its objective stands where no engine has solved it.
        """
        tried: set[tuple[Kind, int]] = set()
        for branch in sorted((*self.pruned, *self.late), key=lambda branch: branch.order):
            look = branch.kind, len(branch.cell.grid.rows)
            candidate = None if look in tried or self.deadline.is_over else quickly_scored(self.space, branch)
            tried.add(look)
            best = self.best
            if candidate is None or best is None or candidate.rank >= best.rank:
                continue
            solved = solve_problem(candidate.problem, Deadline.after(0.0), self.space.request.engine)
            if solved is not None:
                self.found.append(Found(branch=branch, candidate=candidate, solved=solved))

    def _put(self, old: Candidate, new: Candidate) -> None:
        """Put a candidate in the place of another one of its branch."""
        at = next(index for index, one in enumerate(self.found) if one.candidate is old)
        self.found[at] = replace(self.found[at], candidate=new)

    def certificate(self, best: Candidate) -> Certificate:
        """Return how far from the best ``best`` can be.

        The bound is under the steps of all splits in every branch, and, where other depths or fitted schedules were
        tried, under those of every schedule of the best stages.
        """
        solved = next(one.solved for one in self.found if one.candidate is best)
        solution = solved.solution
        branches = (*self.pruned, *self.late, *(one.branch for one in self.found))
        bound = min(best.step_ns, *(branch.bound_ns for branch in branches))
        if self.fitted or best.kind.depth > 0:
            bound = min(bound, bound_of_stages(best))
        return Certificate(
            status="feasible" if self.late and solution.status == "optimal" else solution.status,
            engine=solved.engine,
            objective_ns=solution.objective_ns,
            objective_bound_ns=solution.bound_ns,
            solver_gap=solution.gap,
            step_bound_ns=bound,
            gap=(best.step_ns - bound) / bound if bound else 0.0,
        )


def _worth_simulating(costs: Sequence[Costed], deadline: Deadline) -> list[Costed]:
    """Return all splits of a branch, or where steps are long the best by its estimate; the last where time is up."""
    if len(costs) > 1 and costs[0].size > LARGE and not deadline.is_over:
        return [min(_in_time(costs, deadline), key=lambda one: (one.estimate_ns(), one.bounds))]
    return list(costs[-1:] if deadline.is_over else costs)


def _in_time(costs: Sequence[Costed], deadline: Deadline) -> Iterator[Costed]:
    """Yield the last one, and then the others while there is time."""
    yield costs[-1]
    for one in costs[:-1]:
        if deadline.is_over:
            return
        yield one
