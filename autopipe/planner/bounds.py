"""A dynamic programme over cuts gives the ILP its incumbent, its bounds and the intervals that are left to it."""

from dataclasses import dataclass

import numpy as np

from autopipe.costs.tables import Table
from autopipe.planner.problem import Mask, Problem, pace_ns

FAR = np.int64(1 << 61)


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split found by the dynamic programme.

    ``total_ns`` is the sum of its stages' computations and hops, ``pace_ns`` the time between two
    micro-batches.
    """

    bounds: tuple[int, ...]
    total_ns: int
    pace_ns: int


def cheapest(problem: Problem, *, pace_limit_ns: int | None = None) -> Split | None:
    """Return the split with the least sum of computations and hops among those of at most that pace, None if none.

    Notes
    -----
    From the last stage to the first, over the boundary before it: a smaller sum behind a boundary is better
    both as an end and for the round trips that contain it, so the least one is all that need be kept.
    O(stages * L^2).
    """
    sums, choices = _backward(problem, pace_limit_ns)
    total = int(sums[0][0])
    if total >= FAR:
        return None
    bounds = _follow(choices)
    return Split(bounds=bounds, total_ns=total, pace_ns=pace_ns(problem, bounds))


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The splits between which every trade of pace against sum lies.

    Attributes
    ----------
    cheapest, fastest : Split
        The least sum at any pace, and the least sum at the least pace.
    best : Split
        The least (m-1) * pace + sum: the exact optimum of the solver's objective where there is neither an
        optimizer nor a tied parameter, else a bound under it.
    """

    cheapest: Split
    fastest: Split
    best: Split


def frontier(problem: Problem) -> Frontier | None:
    """Return the cheapest, the fastest and the best split of ``problem``, None if nothing is allowed.

    Notes
    -----
    The least sum falls as the allowed pace rises; between two paces no split is better than the lower pace
    with the sum of the higher, and ranges in which that is no improvement are left out.
    """
    least = cheapest(problem)
    if least is None:
        return None
    quickest = _fastest(problem, least)
    weight = problem.micro_batches - 1

    def score(split: Split) -> tuple[int, int]:
        return weight * split.pace_ns + split.total_ns, split.pace_ns

    best = min(quickest, least, key=score)
    ranges = [(quickest.pace_ns, least)]
    while ranges:
        low, above = ranges.pop()
        if low >= above.pace_ns or weight * low + above.total_ns >= score(best)[0]:
            continue
        middle = (low + above.pace_ns) // 2
        found = cheapest(problem, pace_limit_ns=middle)
        assert found is not None
        best = min(best, found, key=score)
        ranges += [(middle + 1, above), (low, found)]
    return Frontier(cheapest=least, fastest=quickest, best=best)


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What is left for the ILP: per stage the intervals on some split that may beat the incumbent; the least pace."""

    kept: tuple[Mask, ...]
    pace_low_ns: int

    @property
    def intervals(self) -> int:
        """How many (stage, interval) pairs are left."""
        return sum(int(mask.sum()) for mask in self.kept)


def reduce(problem: Problem, known: Frontier, incumbent_ns: int) -> Reduction:
    """Return the intervals through which a split with an objective of at most ``incumbent_ns`` may pass.

    Where a split goes through an interval, its objective is at least the cheapest way to the interval, its
    own cost and the cheapest way on, plus (m-1) times the larger of its pace and the least pace of all,
    plus the optimizer of the stage.
    """
    weight = problem.micro_batches - 1
    ceiling = (incumbent_ns - known.cheapest.total_ns) // weight if weight else None
    onward, _ = _backward(problem, ceiling)
    reached = _forward(problem, onward, ceiling)
    kept = []
    for stage in range(problem.stages):
        through = reached[stage][:, None] + problem.compute_ns[stage] + problem.hop_ns[stage]
        through = through + onward[stage + 1][None, :] + problem.optimizer_ns[stage]
        through += weight * np.maximum(problem.pace_ns[stage], known.fastest.pace_ns)
        mask = _open(problem, stage, onward[stage + 1], ceiling) & (reached[stage] < FAR)[:, None]
        kept.append(mask & (through <= incumbent_ns))
    return Reduction(kept=tuple(kept), pace_low_ns=known.fastest.pace_ns)


def _open(problem: Problem, stage: int, onward: Table, pace_limit_ns: int | None) -> Mask:
    """Return the intervals from which the end can be reached within the pace, given the least sums behind them."""
    mask = problem.allowed[stage] & (onward < FAR)[None, :]
    if pace_limit_ns is not None:
        mask = mask & (problem.pace_ns[stage] <= pace_limit_ns)
        if problem.turns(stage):
            round_trip = problem.compute_ns[stage] + onward[None, :]
            mask &= round_trip <= problem.in_flight[stage] * pace_limit_ns
    return mask


def _backward(problem: Problem, pace_limit_ns: int | None) -> tuple[list[Table], list[Table]]:
    """Return, per stage and boundary before it, the least sum to the end, and the boundary that begins it."""
    onward = np.full(problem.layers + 1, FAR)
    onward[problem.layers] = 0
    sums, choices = [onward], []
    for stage in reversed(range(problem.stages)):
        ways = problem.compute_ns[stage] + problem.hop_ns[stage] + onward[None, :]
        ways = np.where(_open(problem, stage, onward, pace_limit_ns), ways, FAR)
        choices.append(ways.argmin(axis=1))
        onward = ways.min(axis=1)
        sums.append(onward)
    return sums[::-1], choices[::-1]


def _forward(problem: Problem, onward: list[Table], pace_limit_ns: int | None) -> list[Table]:
    """Return, per stage and boundary before it, the least sum from the beginning."""
    reached = np.full(problem.layers + 1, FAR)
    reached[0] = 0
    sums = [reached]
    for stage in range(problem.stages):
        ways = problem.compute_ns[stage] + problem.hop_ns[stage] + reached[:, None]
        mask = _open(problem, stage, onward[stage + 1], pace_limit_ns) & (reached < FAR)[:, None]
        reached = np.where(mask, ways, FAR).min(axis=0)
        sums.append(reached)
    return sums


def _follow(choices: list[Table]) -> tuple[int, ...]:
    bounds = [0]
    for choice in choices:
        bounds.append(int(choice[bounds[-1]]))
    return tuple(bounds)


def _fastest(problem: Problem, known: Split) -> Split:
    """Return a split of the least pace, with the least sum among these, given any split."""
    low = _least_bottleneck(problem)
    found = cheapest(problem, pace_limit_ns=low)
    if found is not None:
        return found
    best = known
    while low < best.pace_ns:
        middle = (low + best.pace_ns) // 2
        found = cheapest(problem, pace_limit_ns=middle)
        if found is None:
            low = middle + 1
        else:
            best = found
    return best


def _least_bottleneck(problem: Problem) -> int:
    """Return the least pace that stages and links alone allow."""
    highest = np.full(problem.layers + 1, FAR)
    highest[problem.layers] = 0
    for stage in reversed(range(problem.stages)):
        reach = np.maximum(problem.pace_ns[stage], highest[None, :])
        highest = np.where(problem.allowed[stage], reach, FAR).min(axis=1)
    return int(highest[0])
