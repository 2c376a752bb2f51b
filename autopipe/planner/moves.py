"""Local moves on the simulator's score: boundaries, depth and recompute shift while the step gets shorter."""

from collections.abc import Iterator
from dataclasses import replace

from autopipe.planner.problem import Problem, ranks_of
from autopipe.planner.score import Candidate, Costed, recosted, simulated
from autopipe.simulator.events import run

BUDGET = 150_000
LONG = 4


def improved(candidate: Candidate) -> Candidate:
    """Return ``candidate``, or a better one that single moves lead to: never slower, never above a limit.

    A move shifts one boundary by a layer, changes the depth of 1F1B by one, or lets one layer no longer recompute.
    Each round takes the best of all moves. Where steps are long, moves are judged by `Costed.estimate_ns`.

    Notes
    -----
    Ends at a local optimum or when the moves tried add up to some `BUDGET` actions: deterministic.
    """
    left = BUDGET
    best, best_ns = candidate, candidate.costed.estimate_ns()
    while left > 0:
        found: tuple[int, Costed] | None = None
        for costs in _neighbours(best.costed):
            left -= min(costs.size, LONG * 12 * costs.problem.ranks * costs.problem.stages)
            if left < 0:
                break
            step = costs.estimate_ns()
            if step < (best_ns if found is None else found[0]):
                found = step, costs
        if found is None:
            break
        moved = simulated(found[1])
        if not moved.fits or moved.step_ns >= best.step_ns:
            break
        best, best_ns = moved, found[0]
    return best


def _neighbours(costs: Costed) -> Iterator[Costed]:
    """Yield what single moves make of a split, those that memory rules out by a short walk left out."""
    problem, bounds = costs.problem, costs.bounds
    for cut in range(1, problem.stages):
        for shifted in (bounds[cut] - 1, bounds[cut] + 1):
            other = (*bounds[:cut], shifted, *bounds[cut + 1 :])
            if is_legal(problem, other):
                yield from _fitting(recosted(problem, other, costs.recompute, costs.kind))
    if costs.kind.schedule == "1f1b" and problem.ranks > 1:
        for depth in (costs.kind.depth - 1, costs.kind.depth + 1):
            if depth >= 0:
                yield from _fitting(replace(costs, kind=replace(costs.kind, depth=depth)))
    for layer in sorted(costs.recompute - problem.intervals.sized.recompute):
        yield from _fitting(recosted(problem, bounds, costs.recompute - {layer}, costs.kind))


def _fitting(costs: Costed) -> Iterator[Costed]:
    limits = costs.problem.limits
    if all(limit is None for limit in limits):
        yield costs
        return
    count = costs.problem.micro_batches
    walked = min(count, 4 * costs.problem.ranks + costs.kind.depth + 8 + count % costs.problem.ranks)
    if costs.kind.schedule in ("gpipe", "bfs"):
        walked = count
    peaks = run(costs.schedule(walked), costs.stages, costs.edges, with_spans=False).peak_bytes
    if all(limit is None or peak <= limit for peak, limit in zip(peaks, limits, strict=True)):
        yield costs


def is_legal(problem: Problem, bounds: tuple[int, ...]) -> bool:
    """Tell whether a split has legal cuts, no empty stage, and keeps what is wished."""
    spans = zip(range(problem.stages), bounds, bounds[1:], strict=False)
    if not all(begin < end and problem.legal[stage][begin, end] for stage, begin, end in spans):
        return False
    return all(len(ranks_of(problem, bounds, pair)) == 1 for pair in problem.together)
