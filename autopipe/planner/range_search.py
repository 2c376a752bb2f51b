"""Graphs with too many closed sets to list: branch and bound over ranges of closed sets."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopipe.planner.closed_sets import ClosedSets, describe
from autopipe.planner.convex import Chain, Programme
from autopipe.planner.dag import Booleans, Floats
from autopipe.planner.dag_contraction import Contraction
from autopipe.planner.dag_recompute import choices
from autopipe.planner.deadline import Deadline, OutOfTimeError
from autopipe.planner.memory_price import MemoryPrice
from autopipe.planner.set_range import Cuts, Range

NEVER = -np.inf
TOLERANCE = 1e-9
ROUNDS_BETWEEN_PROGRAMMES = 8
NEIGHBOURS = 400
LOOK_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """A chain, or None where none was found under the limit, and a time under which no bottleneck can be."""

    closed: ClosedSets | None
    chain: Chain | None
    bound_s: float


class RangeSearch:
    """Branch and bound over ranges of closed sets, for the least bottleneck of up to ``stages`` stages.

    Parameters
    ----------
    limit_s : float
        The bottleneck of a plan that is known; only better ones are looked for.
    known : sequence of Booleans
        Closed sets of good plans, shape (groups,) each.
    deadline : Deadline
        As long as the last look at the sets took is kept for a last look.

    Notes
    -----
    The ranges part the closed sets among them. With T for the bottleneck, a boundary with a given b can be
    followed by one of a range if that has a set with a <= T + b + what may be open at both, and the best b there
    is read off the range's hull; so the best b after each stage, and whether the last stage fits in T, follow
    from range to range, for any choice of sets in them. The least T that passes is a bound. The ranges on its
    path are split at a group that is in some of their sets, until the sets found on the hulls, through the exact
    programme over them, give a plan as good as the bound. Memory forbids what can fit in no way, and where nodes
    recompute it counts at one price in the times of `MemoryPrice`.
    """

    def __init__(
        self,
        contraction: Contraction,
        *,
        stages: int,
        limit_s: float,
        known: Sequence[Booleans],
        deadline: Deadline,
        exactly: bool = False,
    ) -> None:
        self._price = MemoryPrice.best(contraction, stages)
        self._cuts = Cuts(contraction, self._price.seconds, deadline)
        self._stages = stages
        self._limit_s = limit_s
        self._deadline = deadline
        self._exactly = exactly
        self._look_s = min(1.0, LOOK_SHARE * max(0.0, deadline.left_s))
        self._all_s = float(self._price.seconds.sum())
        self._sets = {held.tobytes(): held for held in known}
        self._least_bytes, self._memory_bytes = _least_bytes(contraction)
        self._ranges: list[Range] = []
        self._jump_s = np.empty((0, 0))
        self._best: tuple[ClosedSets, Chain] | None = None
        self.bound_s = max(self._price.bound_s, float(contraction.seconds.sum()) / stages)

    def solve(self) -> Bounded:
        """Return the best chain found, and the bound."""
        try:
            self._add(_along_the_longest_path(self._cuts))
            self._improve()
            rounds = 0
            while (path := self._raise_bound()) is not None:
                if not self._split(path):
                    break
                rounds += 1
                if rounds % ROUNDS_BETWEEN_PROGRAMMES == 0:
                    self._improve()
        except OutOfTimeError:
            pass
        with suppress(OutOfTimeError):
            self._improve()
        closed, chain = self._best or (None, None)
        return Bounded(closed=closed, chain=chain, bound_s=min(self.bound_s, self._limit_s))

    def _add(self, between: Sequence[tuple[Booleans, Booleans]]) -> None:
        """Add the ranges between pairs of (inside, outside) in which a boundary of a better plan can lie."""
        added = []
        for inside, outside in between:
            self._deadline.sooner(self._look_s).check()
            if self._is_possible(inside, outside):
                added.append(self._cuts.range(inside, outside))
                self._sets.update((held.tobytes(), held) for held in added[-1].sets)
        old = len(self._ranges)
        self._ranges += added
        jump = np.empty((len(self._ranges), len(self._ranges)))
        jump[:old, :old] = self._jump_s
        jump[old:] = self._jumps(added, self._ranges)
        jump[:old, old:] = self._jumps(self._ranges[:old], added)
        self._jump_s = jump

    def _is_possible(self, inside: Booleans, outside: Booleans) -> bool:
        """Tell whether some number of stages before and after a boundary of the range leaves room for its open nets."""
        cuts = self._cuts
        must_open = (cuts.incidence @ inside > 0) & (cuts.incidence @ outside > 0)
        open_s = float(cuts.net_s[must_open].sum())
        before = float(cuts.seconds[inside].sum()) + open_s
        after = float(cuts.seconds[outside].sum()) + open_s
        fits_before = before < np.cumsum(self._price.before_s(self._limit_s))[:-1]
        fits_after = after < np.cumsum(self._limit_s + self._price.allowance_s)[-2::-1]
        return bool((fits_before & fits_after).any())

    def _jumps(self, first: Sequence[Range], second: Sequence[Range]) -> Floats:
        """Return the most that can be open at boundaries of both ranges, shape (first, second).

        A net that is open at both counts twice where the stage between holds none of it, else once. `NEVER`
        where the second cannot follow the first.
        """
        if not first or not second:
            return np.empty((len(first), len(second)))
        cuts = self._cuts
        outside = np.array([found.outside for found in first], dtype=np.float64)
        inside = np.array([found.inside for found in second], dtype=np.float64)
        not_outside = outside @ cuts.incidence.T < cuts.net_sizes
        not_inside = inside @ cuts.incidence.T < cuts.net_sizes
        jump = 2 * (not_outside * cuts.net_s) @ not_inside.T.astype(np.float64)
        for net in np.flatnonzero(cuts.net_sizes > 2):
            self._deadline.sooner(self._look_s).check()
            ends = list(cuts.contraction.nets[net][0])
            between = outside[:, ends] @ inside[:, ends].T > 0
            jump -= cuts.net_s[net] * (between & not_outside[:, [net]] & not_inside[None, :, net])
        first_inside = np.array([found.inside for found in first], dtype=np.float64)
        second_outside = np.array([found.outside for found in second], dtype=np.float64)
        jump[first_inside @ second_outside.T > 0] = NEVER
        if self._memory_bytes is not None:
            jump[(outside * self._least_bytes) @ inside.T > self._memory_bytes * (1 + TOLERANCE)] = NEVER
        return jump

    def _raise_bound(self) -> list[int] | None:
        """Raise the bound as far as the ranges allow and return the path that holds it; None if it meets the limit."""
        worth = _worths(self._ranges)
        enough = self._limit_s * (1 - TOLERANCE)
        low = self.bound_s
        path = self._path(worth, low)
        if path is not None:
            return path
        high = enough
        best = self._path(worth, high)
        if best is None:
            self.bound_s = self._limit_s
            return None
        while high - low > TOLERANCE * high:
            middle = (low + high) / 2
            path = self._path(worth, middle)
            if path is None:
                low = self.bound_s = middle
            else:
                high, best = middle, path
        return best

    def _path(self, worth: Callable[[Floats], Floats], most_s: float) -> list[int] | None:
        """Return ranges in which the boundaries of a plan of bottleneck ``most_s`` could lie, None if none can."""
        stage_s, last_s = self._price.before_s(most_s), most_s + self._price.allowance_s[0]
        if not self._ranges:
            return [] if self._all_s <= last_s else None
        reached = worth(np.full(len(self._ranges), stage_s[0]))
        came_from: list[npt.NDArray[np.int64]] = []
        for stage in range(1, self._stages):
            self._deadline.sooner(self._look_s).check()
            if reached.max() >= self._all_s - last_s:
                path = [int(reached.argmax())]
                for previous in reversed(came_from):
                    path.append(int(previous[path[-1]]))
                return path[::-1]
            through = reached[:, None] + self._jump_s
            came_from.append(through.argmax(axis=0))
            reached = worth(stage_s[stage] + through.max(axis=0))
        return None

    def _split(self, path: Sequence[int]) -> bool:
        """Split every range on ``path`` that holds several sets; return False if none does."""
        cuts = self._cuts
        split = sorted({index for index in path if self._ranges[index].free.any()})
        parts = []
        for index in split:
            found = self._ranges[index]
            free = np.flatnonzero(found.free)
            before = (cuts.before[free] & found.free) @ cuts.seconds
            after = (cuts.after[free] & found.free) @ cuts.seconds
            group = free[np.argmax(np.minimum(before, after))]
            parts.append((found.inside | cuts.before[group], found.outside))
            parts.append((found.inside, found.outside | cuts.after[group]))
        kept = [index for index in range(len(self._ranges)) if index not in set(split)]
        self._ranges = [self._ranges[index] for index in kept]
        self._jump_s = self._jump_s[np.ix_(kept, kept)]
        self._add(parts)
        return bool(split)

    def _improve(self) -> None:
        """Look for a better chain among the sets that are known, and among their neighbours when one is found."""
        while True:
            begun = time.monotonic()
            held = np.unique(np.array(list(self._sets.values())).astype(np.uint8), axis=0)
            closed = describe(self._cuts.contraction, held)
            programme = Programme(
                closed=closed,
                stages=self._stages,
                limit_s=self._limit_s,
                exactly=self._exactly,
                deadline=self._deadline,
            )
            chain = programme.solve()
            self._look_s = time.monotonic() - begun
            if chain is None or chain.seconds >= self._limit_s * (1 - TOLERANCE):
                return
            self._best, self._limit_s = (closed, chain), chain.seconds
            for index in chain.sets[1:-1]:
                self._deadline.check()
                self._sets.update(_neighbours(self._cuts, closed.members[index].astype(bool)))


def _along_the_longest_path(cuts: Cuts) -> list[tuple[Booleans, Booleans]]:
    """Return ranges that part the closed sets by how many groups of a longest path they hold."""
    contraction = cuts.contraction
    length = [1] * contraction.size
    previous = [-1] * contraction.size
    for group in range(contraction.size):
        for other in contraction.predecessors[group]:
            if length[other] + 1 > length[group]:
                length[group], previous[group] = length[other] + 1, other
    path = [int(np.argmax(length))]
    while previous[path[-1]] >= 0:
        path.append(previous[path[-1]])
    path.reverse()
    none = np.zeros(contraction.size, dtype=bool)
    insides = [none, *(cuts.before[group] for group in path)]
    outsides = [*(cuts.after[group] for group in path), none]
    return list(zip(insides, outsides, strict=True))


def _worths(ranges: Sequence[Range]) -> Callable[[Floats], Floats]:
    """Return a function from the most a that each range may have to the most b that it then has."""
    least = np.array([found.least_a for found in ranges])
    width = max((len(found.lines) for found in ranges), default=0) + 1
    constant = np.full((len(ranges), width), np.inf)
    slope = np.zeros((len(ranges), width))
    for row, found in enumerate(ranges):
        constant[row, -1] = found.most_b
        for column, (c, rise) in enumerate(found.lines):
            constant[row, column], slope[row, column] = c, rise

    def worth(most_a: Floats) -> Floats:
        reachable = most_a >= least
        a = np.where(reachable, most_a, 0.0)
        return np.where(reachable, (constant + slope * a[:, None]).min(axis=1), NEVER)

    return worth


def _neighbours(cuts: Cuts, held: Booleans) -> dict[bytes, Booleans]:
    """Return up to `NEIGHBOURS` closed sets near ``held``, by adding and taking away a group at a time."""
    needs = cuts.before.astype(np.float32)
    found = {held.tobytes(): held}
    queue = [held]
    while queue and len(found) < NEIGHBOURS:
        current = queue.pop(0)
        ready = np.flatnonzero(~current & (needs @ ~current == 1))
        last = np.flatnonzero(current & (needs.T @ current == 1))
        for group in (*ready, *last):
            other = current.copy()
            other[group] = not other[group]
            if other.tobytes() not in found:
                found[other.tobytes()] = other
                queue.append(other)
    return found


def _least_bytes(contraction: Contraction) -> tuple[Floats, float | None]:
    """Return the least memory that each group can need on any stage, and the limit."""
    found = choices(contraction.dag, contraction.dag.in_flight(1))
    if found is None:
        return np.zeros(contraction.size), None
    by_node = found.base_bytes - found.saved_bytes
    return np.array([by_node[list(nodes)].sum() for nodes in contraction.groups]), found.limit_bytes
