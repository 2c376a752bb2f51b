"""A dynamic programme over cuts gives the ILP its incumbent, its bounds and the intervals that are left to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autopipe.costs.tables import Table
from autopipe.planner.places import Mask
from autopipe.planner.problem import FAR, Problem, pace_ns

Entries = TypeVar("Entries", Table, Mask)


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
    O(stages * W^2) for windows of W places.
    """
    if _is_empty(problem):
        return None
    sums, choices = _backward(problem, pace_limit_ns)
    total = int(sums[0][0])
    if total >= FAR:
        return None
    bounds = follow(problem, choices)
    return Split(bounds=bounds, total_ns=total, pace_ns=pace_ns(problem, bounds))


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The splits between which every trade of pace against sum lies.

    Attributes
    ----------
    cheapest, fastest : Split
        The least sum at any pace, and the least sum at the least pace.
    best : Split
        The least weight * pace + sum: the exact optimum of the solver's objective where there is neither a
        tail, nor a tied parameter, nor a rank with several stages, else a bound under it.
    problem : Problem
        What they are splits of.
    """

    cheapest: Split
    fastest: Split
    best: Split
    problem: Problem


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
    weight = problem.weight

    def score(split: Split) -> tuple[int, int]:
        return weight * split.pace_ns + split.total_ns, split.pace_ns

    best = min(quickest, least, key=score)
    narrowed = problem
    if weight:
        narrowed = narrow(problem, (score(best)[0] - least.total_ns) // weight)
    ranges = [(quickest.pace_ns, least)]
    while ranges:
        low, above = ranges.pop()
        if low >= above.pace_ns or weight * low + above.total_ns >= score(best)[0]:
            continue
        middle = min((low + above.pace_ns) // 2, (score(best)[0] - least.total_ns) // weight)
        found = cheapest(narrowed, pace_limit_ns=middle)
        assert found is not None
        best = min(best, found, key=score)
        ranges += [(middle + 1, above), (low, found)]
    return Frontier(cheapest=least, fastest=quickest, best=best, problem=problem)


def narrow(problem: Problem, limit_ns: int, tables: Sequence[Table] | None = None) -> Problem:
    """Return ``problem`` with windows that hold every allowed split whose entries are all at most ``limit_ns``.

    It stays as it was if there is none. Entries are those of ``tables``, by default of the pace.
    """
    reached: list[npt.NDArray[np.bool_]] = [np.ones(1, dtype=bool)]
    masks = []
    for stage in range(problem.stages):
        short = block(problem, problem.pace_ns if tables is None else tables, stage) <= limit_ns
        masks.append(block(problem, problem.allowed, stage) & short)
        reached.append(np.any(masks[stage][reached[-1]], axis=0))
    onward: npt.NDArray[np.bool_] = np.ones(1, dtype=bool)
    windows = []
    for stage in range(problem.stages, -1, -1):
        if stage < problem.stages:
            onward = np.any(masks[stage][:, onward], axis=1)
        places = np.flatnonzero(reached[stage] & onward)
        if not len(places):
            return problem
        begin = problem.windows[stage][0]
        windows.append((begin + int(places[0]), begin + int(places[-1])))
    return replace(problem, windows=tuple(reversed(windows)))


def block(problem: Problem, tables: Sequence[Entries], stage: int) -> Entries:
    """Return the part of a stage's table that lies in the windows of its two boundaries."""
    (low, high), (first, last) = problem.windows[stage], problem.windows[stage + 1]
    return tables[stage][low : high + 1, first : last + 1]


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What is left for the ILP: intervals (stage, begin, end) on some split that may beat the incumbent.

    ``pace_low_ns`` and ``tail_low_ns`` are the least pace and the least longest tail of all splits.
    """

    arcs: tuple[tuple[int, int, int], ...]
    pace_low_ns: int
    tail_low_ns: int


def reduce(known: Frontier, incumbent_ns: int) -> Reduction:
    """Return the intervals through which a split with an objective of at most ``incumbent_ns`` may pass.

    Where a split goes through an interval, its objective is at least the cheapest way to the interval, its
    own cost and the cheapest way on, plus the weight times the larger of its pace and the least pace of all,
    plus the larger of its tail and the least tail of all.
    """
    problem = known.problem
    weight = problem.weight
    ceiling = (incumbent_ns - known.cheapest.total_ns) // weight if weight else None
    if ceiling is not None:
        problem = narrow(problem, ceiling)
    onward, _ = _backward(problem, ceiling)
    reached = _forward(problem, onward, ceiling)
    tail_low = least_bottleneck(problem, problem.tail_ns)
    arcs: list[tuple[int, int, int]] = []
    for stage in range(problem.stages):
        through = reached[stage][:, None] + block(problem, problem.compute_ns, stage)
        through = through + block(problem, problem.hop_ns, stage) + onward[stage + 1][None, :]
        through += weight * np.maximum(block(problem, problem.pace_ns, stage), known.fastest.pace_ns)
        through += np.maximum(block(problem, problem.tail_ns, stage), tail_low)
        mask = _open(problem, stage, onward[stage + 1], ceiling) & (reached[stage] < FAR)[:, None]
        begins, ends = (mask & (through <= incumbent_ns)).nonzero()
        low, first = problem.windows[stage][0], problem.windows[stage + 1][0]
        arcs += [(stage, low + int(i), first + int(j)) for i, j in zip(begins, ends, strict=True)]
    return Reduction(arcs=tuple(arcs), pace_low_ns=known.fastest.pace_ns, tail_low_ns=tail_low)


def everything(problem: Problem) -> Reduction:
    """Return all allowed intervals: what is left where nothing is known."""
    arcs = [
        (stage, int(begin), int(end))
        for stage, mask in enumerate(problem.allowed)
        for begin, end in zip(*mask.nonzero(), strict=True)
    ]
    return Reduction(arcs=tuple(arcs), pace_low_ns=0, tail_low_ns=0)


def _is_empty(problem: Problem) -> bool:
    return any(high < low for low, high in problem.windows)


def _open(problem: Problem, stage: int, onward: Table, pace_limit_ns: int | None) -> Mask:
    """Return the intervals from which the end can be reached within the pace, given the least sums behind them."""
    mask = block(problem, problem.allowed, stage) & (onward < FAR)[None, :]
    if pace_limit_ns is not None:
        mask = mask & (block(problem, problem.pace_ns, stage) <= pace_limit_ns)
        if problem.turns(stage):
            round_trip = block(problem, problem.compute_ns, stage) + onward[None, :]
            first, last = problem.windows[stage + 1]
            unbound = ~problem.returning[first : last + 1][None, :]
            mask &= unbound | (round_trip <= problem.in_flight[stage] * pace_limit_ns)
    return mask


def _backward(problem: Problem, pace_limit_ns: int | None) -> tuple[list[Table], list[Table]]:
    """Return, per stage and boundary before it, the least sum to the end, and the boundary that begins it."""
    onward = np.zeros(1, dtype=np.int64)
    sums, choices = [onward], []
    for stage in reversed(range(problem.stages)):
        ways = block(problem, problem.compute_ns, stage) + block(problem, problem.hop_ns, stage) + onward[None, :]
        ways[~_open(problem, stage, onward, pace_limit_ns)] = FAR
        choices.append(ways.argmin(axis=1))
        onward = np.take_along_axis(ways, choices[-1][:, None], axis=1)[:, 0]
        sums.append(onward)
    return sums[::-1], choices[::-1]


def _forward(problem: Problem, onward: list[Table], pace_limit_ns: int | None) -> list[Table]:
    """Return, per stage and boundary before it, the least sum from the beginning."""
    reached = np.zeros(1, dtype=np.int64)
    sums = [reached]
    for stage in range(problem.stages):
        ways = block(problem, problem.compute_ns, stage) + block(problem, problem.hop_ns, stage) + reached[:, None]
        mask = _open(problem, stage, onward[stage + 1], pace_limit_ns) & (reached < FAR)[:, None]
        reached = np.where(mask, ways, FAR).min(axis=0)
        sums.append(reached)
    return sums


def follow(problem: Problem, choices: Sequence[Table]) -> tuple[int, ...]:
    """Return the bounds that ``choices`` lead to: by stage, the position in the window of the boundary behind it."""
    bounds = [problem.windows[0][0]]
    for stage, choice in enumerate(choices):
        bounds.append(problem.windows[stage + 1][0] + int(choice[bounds[-1] - problem.windows[stage][0]]))
    return tuple(bounds)


def _fastest(problem: Problem, known: Split) -> Split:
    """Return a split of the least pace, with the least sum among these, given any split."""
    low = least_bottleneck(problem, problem.pace_ns)
    found = cheapest(narrow(problem, low), pace_limit_ns=low)
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
            problem = narrow(problem, best.pace_ns)
    return best


def least_bottleneck(problem: Problem, tables: Sequence[Table]) -> int:
    """Return the least value that the largest entry of an allowed split can have, `FAR` if there is none."""
    return bottleneck(problem, [block(problem, tables, stage) for stage in range(problem.stages)])[0]


def bottleneck(problem: Problem, blocks: Sequence[Table]) -> tuple[int, tuple[int, ...]]:
    """Return the least that the largest entry of an allowed split can be, and a split that has it.

    Parameters
    ----------
    blocks : sequence of Table
        By stage, as `block` cuts them.
    """
    if _is_empty(problem):
        return int(FAR), ()
    highest = np.zeros(1, dtype=np.int64)
    choices = []
    for stage in reversed(range(problem.stages)):
        reach = np.maximum(blocks[stage], highest[None, :])
        reach[~block(problem, problem.allowed, stage)] = FAR
        choices.append(reach.argmin(axis=1))
        highest = np.take_along_axis(reach, choices[-1][:, None], axis=1)[:, 0]
    return int(highest[0]), follow(problem, choices[::-1])
