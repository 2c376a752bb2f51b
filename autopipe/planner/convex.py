"""The best cut into convex stages: an exact search over chains of closed sets."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autopipe.planner.closed_sets import ClosedSets
from autopipe.planner.dag import Booleans, Floats
from autopipe.planner.dag_loads import EXACT, INFINITE, Indices, Loads
from autopipe.planner.deadline import NEVER, Deadline

PAIRS_AT_ONCE = 1_000_000


class Combine(StrEnum):
    """What is made small: the slowest stage, or the sum of all stages."""

    MAXIMUM = "maximum"
    SUM = "sum"


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Closed sets from the empty one to all, each within the next; what lies between two is a stage."""

    sets: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Programme:
    """The best chain of up to ``stages`` stages none of which takes ``limit_s`` or more.

    Parameters
    ----------
    exactly : bool
        Whether there must be that many stages.

    Notes
    -----
    A dynamic programme from the end: with q stages to go, a closed set is worth the least, over larger sets, of
    the stage between the two and what the larger set is worth with q - 1 to go. Sets that cannot lie on a good
    chain are left out: what is left to compute and the open transfers fit in q stages, and what is done in the
    others. Where stages recompute, these worths are bounds, and a best-first search from the empty set takes
    them as its estimate and makes loads true only where it has to.
    """

    closed: ClosedSets
    stages: int
    limit_s: float
    combine: Combine = Combine.MAXIMUM
    exactly: bool = False
    deadline: Deadline = NEVER

    def solve(self) -> Chain | None:
        """Return the best chain, or None if there is none.

        Raises
        ------
        OutOfTimeError
            If the deadline passes first.
        """
        worth = np.full(self.closed.size, INFINITE)
        worth[-1] = 0.0
        worths, following = [worth], [np.full(self.closed.size, -1)]
        loads: list[Loads] = []
        for stages_to_end in range(1, self.stages + 1):
            self.deadline.check()
            loads.append(Loads.of(self.closed, self.closed.contraction.dag.in_flight(stages_to_end)))
            worth, choice = self._step(worth, stages_to_end, loads[-1])
            worths.append(worth)
            following.append(choice)
        at = [worth[0] for worth in worths]
        best = int(np.argmin(at))
        if at[best] == INFINITE:
            return None
        if not all(load.exact for load in loads):
            return _BestFirst(self, worths, loads).solve()
        sets = [0]
        for stages_to_end in range(best, 0, -1):
            sets.append(int(following[stages_to_end][sets[-1]]))
        return Chain(sets=tuple(sets), seconds=float(at[best]))

    def together(self, load: Floats, others: Floats) -> Floats:
        """Return what a stage and the others come to."""
        return np.maximum(load, others) if self.combine is Combine.MAXIMUM else load + others

    def both(self, load: float, other: float) -> float:
        """Return what one stage and the others come to."""
        return max(load, other) if self.combine is Combine.MAXIMUM else load + other

    def _step(self, worth: Floats, stages_to_end: int, loads: Loads) -> tuple[Floats, Indices]:
        """Return what every set is worth with one stage more, and the set that its first stage leads to."""
        closed = self.closed
        outer = np.flatnonzero(worth < INFINITE)
        inner = np.flatnonzero(self._is_possible(stages_to_end) & self._may_fit(stages_to_end, loads))
        value = np.full(closed.size, INFINITE)
        choice = np.full(closed.size, -1, dtype=np.int64)
        for rows, columns in self._blocks(inner, outer):
            self.deadline.check()
            total = self.together(loads.at_least(rows, columns, self.limit_s), worth[columns])
            found = total.argmin(axis=1)
            value[rows], choice[rows] = total[np.arange(len(rows)), found], columns[found]
        return value, choice

    def _blocks(self, inner: Indices, outer: Indices) -> Iterator[tuple[Indices, Indices]]:
        """Yield pieces of ``inner`` with the sets of ``outer`` that are near enough in time to end their stages."""
        seconds = self.closed.seconds
        begin = 0
        while begin < len(inner):
            left = int(np.searchsorted(seconds[outer], seconds[inner[begin]]))
            rows = inner[begin : begin + max(1, PAIRS_AT_ONCE // max(1, len(outer) - left))]
            begin += len(rows)
            right = int(np.searchsorted(seconds[outer], seconds[rows[-1]] + self.limit_s, side="right"))
            if left < right:
                yield rows, outer[left:right]

    def _is_possible(self, stages_to_end: int) -> Booleans:
        """Tell which sets can be the boundary before the last ``stages_to_end`` stages."""
        closed, before = self.closed, self.stages - stages_to_end
        left = closed.seconds[-1] - closed.seconds + closed.open_s
        possible = left <= stages_to_end * self.limit_s
        possible &= closed.seconds + closed.open_s <= before * self.limit_s
        possible[0] = not self.exactly or stages_to_end == self.stages
        possible[-1] = False
        return possible

    def _may_fit(self, stages_to_end: int, loads: Loads) -> Booleans:
        """Tell for which sets all stages before have together memory enough, and all stages after."""
        if loads.choices is None:
            return np.ones(self.closed.size, dtype=bool)
        limit = loads.choices.limit_bytes * (1 + EXACT)
        # Earlier stages have more micro-batches in flight than `loads` counts, later ones at least those of the last.
        last = Loads.of(self.closed, self.closed.contraction.dag.in_flight(1)).least_bytes
        fits = loads.least_bytes <= (self.stages - stages_to_end) * limit
        return np.asarray(fits & (last[-1] - last <= stages_to_end * limit))


class _BestFirst:
    """A best-first search over (set, stages to go), from the empty set, with ``worths`` as its estimate.

    A step is first in the queue with the bound on its load, and again with the load itself where that is
    larger; what comes out with its load is final, because the estimate never falls along a step by more than
    the step's load (Hart, Nilsson and Raphael, 1968; loads made true on demand as in Cohen, Phillips and
    Likhachev, "Planning with experience graphs" and lazy weighted A*, 2014).
    """

    def __init__(self, programme: Programme, worths: list[Floats], loads: list[Loads]) -> None:
        self._programme = programme
        self._worths = worths
        self._loads = loads
        self._queue: list[tuple[float, int, int, int, int, bool]] = []
        self._came_from: dict[tuple[int, int], int] = {}
        self._spent: dict[tuple[int, int], float] = {}
        self._ahead: dict[tuple[int, int], tuple[Indices, Floats]] = {}

    def solve(self) -> Chain | None:
        """Return the best chain, or None if there is none."""
        last = self._programme.closed.size - 1
        for stages in range(1, self._programme.stages + 1):
            if self._worths[stages][0] < INFINITE:
                self._spent[0, stages] = 0.0
                self._expand(0, stages)
        while self._queue:
            self._programme.deadline.check()
            bound, to_go, inner, place, outer, is_true = heapq.heappop(self._queue)
            if not is_true:
                self._push(inner, to_go, place + 1)
            if (outer, to_go - 1) in self._spent:
                continue
            spent = self._after(inner, to_go, outer)
            if spent == INFINITE:
                continue
            true = self._programme.both(spent, float(self._worths[to_go - 1][outer]))
            if true > bound * (1 + EXACT) and not is_true:
                heapq.heappush(self._queue, (true, to_go, inner, place, outer, True))
                continue
            self._spent[outer, to_go - 1] = spent
            self._came_from[outer, to_go - 1] = inner
            if to_go == 1 and outer == last:
                return self._chain(spent)
            self._expand(outer, to_go - 1)
        return None

    def _expand(self, inner: int, to_go: int) -> None:
        """Put the steps from a state in order, and the first of them in the queue."""
        programme = self._programme
        ahead = self._worths[to_go - 1]
        outer = np.flatnonzero(ahead < INFINITE)
        load = self._loads[to_go - 1].at_least(np.array([inner]), outer, programme.limit_s)[0]
        spent = np.full(len(outer), self._spent[inner, to_go])
        total = programme.together(programme.together(load, ahead[outer]), spent)
        order = np.argsort(total, kind="stable")[: int((total < INFINITE).sum())]
        self._ahead[inner, to_go] = outer[order], total[order]
        self._push(inner, to_go, 0)

    def _push(self, inner: int, to_go: int, place: int) -> None:
        outer, total = self._ahead[inner, to_go]
        if place < len(outer):
            heapq.heappush(self._queue, (float(total[place]), to_go, inner, place, int(outer[place]), False))

    def _after(self, inner: int, to_go: int, outer: int) -> float:
        """Return what is spent once the stage from ``inner`` to ``outer`` is done, infinite if it cannot be."""
        programme = self._programme
        load = self._loads[to_go - 1].true_load(inner, outer, programme.limit_s)
        if load >= programme.limit_s:
            return INFINITE
        return programme.both(load, self._spent[inner, to_go])

    def _chain(self, seconds: float) -> Chain:
        sets, to_go = [self._programme.closed.size - 1], 0
        while sets[-1] != 0:
            sets.append(self._came_from[sets[-1], to_go])
            to_go += 1
        return Chain(sets=tuple(reversed(sets)), seconds=seconds)
