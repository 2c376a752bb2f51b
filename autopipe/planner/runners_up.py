"""What was considered and lost: other candidates, branches that no solution was looked for in, fewer devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autopipe.documents.plan import Alternative
from autopipe.errors import AutopipeError
from autopipe.planner.branch import Branch, Space
from autopipe.planner.cells import cells
from autopipe.planner.explain import lost_because
from autopipe.planner.kind import Kind
from autopipe.planner.score import Candidate, costed, score
from autopipe.planner.shortage import shortage
from autopipe.planner.solved import keeps

if TYPE_CHECKING:
    from autopipe.planner.search import Search

MOST = 12
MOST_FEWER = 8
QUICK = 2_000


def runners_up(search: Search, best: Candidate) -> tuple[tuple[Alternative, ...], tuple[Alternative, ...]]:
    """Return what lost against ``best``, the fastest first, and the best plans on fewer devices."""
    solved = [one.candidate for one in search.found if one.candidate is not best]
    solved.sort(key=lambda candidate: candidate.rank)
    others = [_alternative(candidate, lost_because(candidate, best)) for candidate in solved]
    seen = {_look(best.problem.kind, best.problem.ranks)} | {_look(c.problem.kind, c.problem.ranks) for c in solved}
    for branch in sorted((*search.pruned, *search.late), key=lambda branch: branch.order):
        look = _look(branch.kind, len(branch.cell.grid.rows))
        if look not in seen:
            seen.add(look)
            others.append(_pruned(search, branch, best))
    others.sort(key=lambda other: (other.step_ns or 0, other.pipeline_size, other.micro_batch_size, other.schedule))
    for branch in search.unfit:
        look = _look(branch.kind, len(branch.cell.grid.rows))
        own = look == _look(best.problem.kind, best.problem.ranks)
        if (own or look not in seen) and len(others) < MOST and not search.deadline.is_over:
            seen.add(look)
            problem = search.space.problem(branch)
            lacking = shortage(problem)
            if lacking is not None:
                others.append(_of_branch(branch, None, lacking.in_words(problem)))
    fewer = () if search.space.request.stages else tuple(_fewer(search))
    return tuple(others[:MOST]), fewer


def _pruned(search: Search, branch: Branch, best: Candidate) -> Alternative:
    """Return a branch that was not solved: its simulated split where that is quick, else no more than its bound."""
    if not search.deadline.is_over:
        candidate = quickly_scored(search.space, branch)
        if candidate is not None:
            return _alternative(candidate, lost_because(candidate, best))
    return _of_branch(branch, branch.bound_ns, "not solved: no step of it is shorter than this", solved=False)


def quickly_scored(space: Space, branch: Branch) -> Candidate | None:
    """Return the simulated split that a branch was bounded with; None where it has none, or simulating it is long."""
    if 2 * len(branch.cell.grid.rows) * branch.kind.virtual * branch.cell.micro_batches > QUICK:
        return None
    if not branch.tight and branch.kind.virtual == 1:
        branch = space.tightened(branch) or branch
    if branch.split is None:
        return None
    problem = space.problem(branch)
    return score(problem, branch.split) if keeps(problem, branch.split) else None


def _fewer(search: Search) -> Iterator[Alternative]:
    """Yield the best plan of one pipeline for each halving of the devices, down to one, while there is time."""
    count = len(search.space.cluster.devices) // 2
    while count >= 1 and not search.deadline.is_over:
        if count <= MOST_FEWER:
            yield from _on(search.space, count)
        count //= 2


def _on(space: Space, count: int) -> Iterator[Alternative]:
    try:
        found = cells(space.cluster, space.tables, space.request, [(count, 1)])
    except AutopipeError:
        return
    best: tuple[int, Branch] | None = None
    unfit = None
    for cell in found:
        branch = Branch(cell=cell, kind=Kind(schedule="1f1b"), bound_ns=cell.bound_ns)
        if best is not None and branch.bound_ns > best[0]:
            break
        tightened = space.tightened(branch)
        if tightened is None or tightened.split is None:
            unfit = branch
        elif best is None or tightened.bound_ns < best[0]:
            step = costed(space.problem(tightened), tightened.split).estimate_ns()
            best = min([(step, tightened), *([best] if best else [])], key=lambda pair: pair[0])
    remark = "one device, nothing to wait for" if count == 1 else f"on {count} devices only"
    if best is not None:
        yield _of_branch(best[1], best[0], remark)
    elif unfit is not None:
        problem = space.problem(unfit)
        lacking = shortage(problem)
        if lacking is not None:
            yield _of_branch(unfit, None, lacking.in_words(problem))


def _look(kind: Kind, ranks: int) -> tuple[str, int, int]:
    return kind.schedule, kind.virtual, ranks


def _alternative(candidate: Candidate, reason: str) -> Alternative:
    problem = candidate.problem
    return Alternative(
        pipeline_size=problem.ranks,
        data_parallel_size=problem.grid.replicas,
        micro_batch_size=problem.micro_batch_size,
        micro_batches=problem.micro_batches,
        schedule=candidate.kind.schedule,
        virtual_stages=candidate.kind.virtual,
        depth=candidate.kind.depth,
        step_ns=candidate.step_ns,
        bounds=candidate.bounds,
        reason=reason,
    )


def _of_branch(branch: Branch, step_ns: int | None, reason: str, *, solved: bool = True) -> Alternative:
    grid = branch.cell.grid
    return Alternative(
        pipeline_size=len(grid.rows),
        data_parallel_size=grid.replicas,
        micro_batch_size=branch.cell.micro_batch_size,
        micro_batches=branch.cell.micro_batches,
        schedule=branch.kind.schedule,
        virtual_stages=branch.kind.virtual,
        step_ns=step_ns,
        solved=solved,
        bounds=branch.split or () if step_ns is not None and branch.tight else (),
        reason=reason,
    )
