"""Local moves on the simulator's score: boundaries, depth and recompute shift while the step gets shorter."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from autopipe.planner.deadline import NEVER, Deadline
from autopipe.planner.problem import Problem, ranks_of
from autopipe.planner.score import Candidate, Costed, recosted, simulated
from autopipe.planner.step_bound import any_schedule_bound_ns
from autopipe.simulator.events import run

BUDGET = 150_000
LONG = 4


def improved(candidate: Candidate, deadline: Deadline = NEVER) -> Candidate:
    """Return ``candidate``, or a better one that single moves lead to: never slower, never above a limit.

    A move shifts one boundary by a layer, changes the depth of 1F1B by one, or lets one layer no longer recompute.
    Each round takes the best of all moves. Where steps are long, moves are judged by `Costed.estimate_ns`.

    Notes
    -----
    Ends at a local optimum or when the moves tried add up to some `BUDGET` actions: deterministic, unless the
    deadline passes first.
    """
    left = BUDGET
    if deadline.is_over:
        return candidate
    best, best_ns = candidate, candidate.costed.estimate_ns()
    while left > 0:
        found: tuple[int, Costed] | None = None
        for costs in _neighbours(best.costed):
            if _bound_ns(costs) >= best.step_ns:
                continue
            left -= 2 * min(costs.size, LONG * 12 * costs.problem.ranks * costs.problem.stages)
            if left < 0 or deadline.is_over:
                break
            if not fits(costs):
                continue
            step = costs.estimate_ns()
            if step < (best_ns if found is None else found[0]):
                found = step, costs
        if found is None or deadline.is_over:
            break
        moved = simulated(found[1])
        if not moved.fits or moved.step_ns >= best.step_ns:
            break
        best, best_ns = moved, found[0]
    return best


def _neighbours(costs: Costed) -> Iterator[Costed]:
    """Yield what single moves make of a split; recompute is first dropped where the stage takes longest."""
    problem, bounds = costs.problem, costs.bounds
    for cut in range(1, problem.stages):
        for shifted in (bounds[cut] - 1, bounds[cut] + 1):
            other = (*bounds[:cut], shifted, *bounds[cut + 1 :])
            if is_legal(problem, other):
                yield recosted(problem, other, costs.recompute, costs.kind)
    if costs.kind.schedule == "1f1b" and problem.ranks > 1:
        for depth in (costs.kind.depth - 1, costs.kind.depth + 1):
            if depth >= 0:
                yield replace(costs, kind=replace(costs.kind, depth=depth))
    times = [-(stage.forward_ns + stage.backward_ns) for stage in costs.stages]
    chosen = costs.recompute - problem.intervals.sized.recompute
    for layer in sorted(chosen, key=lambda layer: (times[bisect_right(bounds, layer) - 1], layer)):
        yield recosted(problem, bounds, costs.recompute - {layer}, costs.kind)


def _bound_ns(costs: Costed) -> int:
    problem = costs.problem
    return any_schedule_bound_ns(problem.stage_ranks, problem.micro_batches, costs.stages, costs.edges, problem.limits)


def fits(costs: Costed) -> bool:
    """Tell whether a split keeps to the memory of its ranks, by a short walk."""
    limits = costs.problem.limits
    if all(limit is None for limit in limits):
        return True
    count = costs.problem.micro_batches
    walked = min(count, 4 * costs.problem.ranks + costs.kind.depth + 8 + count % costs.problem.ranks)
    if costs.kind.schedule in ("gpipe", "bfs"):
        walked = count
    peaks = run(costs.schedule(walked), costs.stages, costs.edges, with_spans=False).peak_bytes
    return all(limit is None or peak <= limit for peak, limit in zip(peaks, limits, strict=True))


def is_legal(problem: Problem, bounds: tuple[int, ...]) -> bool:
    """Tell whether a split has legal cuts, no empty stage, and keeps what is wished."""
    spans = zip(range(problem.stages), bounds, bounds[1:], strict=False)
    if not all(begin < end and problem.legal[stage][begin, end] for stage, begin, end in spans):
        return False
    return all(len(ranks_of(problem, bounds, pair)) == 1 for pair in problem.together)
