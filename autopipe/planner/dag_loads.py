"""The load of any stage between two closed sets, read off its two boundaries."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopipe.planner.closed_sets import ClosedSets
from autopipe.planner.dag import Booleans, Floats
from autopipe.planner.dag_recompute import Choices, cheapest, choices

RATES = 12
EXACT = 1e-12
INFINITE = float("inf")
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Loads:
    """Loads of stages that have ``in_flight`` micro-batches in flight.

    The load of a stage is what the outer set computes and has open, less what the inner one computes, plus what
    that has open, less what is open at both. Where a stage does not fit in memory, some of its nodes recompute;
    what that costs at least is known by prices of a byte (a Lagrangian bound, one for each of ``rates``).

    Attributes
    ----------
    choices : Choices or None
        None where everything fits.
    held_bytes, least_bytes : Floats
        Shape (sets,): memory in the faster way, and with every node that can save memory recomputing.
    priced : Floats
        Shape (sets, rates).
    """

    closed: ClosedSets
    choices: Choices | None
    held_bytes: Floats
    least_bytes: Floats
    rates: Floats
    priced: Floats

    @classmethod
    def of(cls, closed: ClosedSets, in_flight: int) -> "Loads":
        """Return the loads for a number of micro-batches in flight: made once for the same sets."""
        if in_flight not in closed.loads:
            closed.loads[in_flight] = cls._made(closed, in_flight)
        return closed.loads[in_flight]

    @classmethod
    def _made(cls, closed: ClosedSets, in_flight: int) -> "Loads":
        found = choices(closed.contraction.dag, in_flight)
        none = np.empty(0)
        if found is None:
            return cls(closed=closed, choices=None, held_bytes=none, least_bytes=none, rates=none, priced=none)
        held = closed.sums(found.base_bytes[:, None])[:, 0]
        if held[-1] <= found.limit_bytes:
            return cls(closed=closed, choices=None, held_bytes=held, least_bytes=held, rates=none, priced=none)
        rates = _rates(found)
        bought = np.minimum(0.0, found.extra_s[:, None] - rates[None, :] * found.saved_bytes[:, None])
        return cls(
            closed=closed,
            choices=found,
            held_bytes=held,
            least_bytes=held - closed.sums(found.saved_bytes[:, None])[:, 0],
            rates=rates,
            priced=closed.sums(bought),
        )

    @property
    def exact(self) -> bool:
        """Whether `at_least` says what the loads are, because nothing recomputes."""
        return self.choices is None or not self.choices.any

    def at_least(self, inner: Indices, outer: Indices, limit_s: float) -> Floats:
        """Return bounds on the loads from sets ``inner`` to sets ``outer``, shape (inner, outer).

        Infinite where no stage can be that, or where it would take ``limit_s`` or more.
        """
        closed = self.closed
        ones, weighted = closed.shared
        load = (closed.seconds + closed.open_s)[outer][None, :] - (closed.seconds - closed.open_s)[inner][:, None]
        load -= (ones[inner] @ weighted[outer].T).toarray()
        impossible = load >= limit_s
        for row, begin in enumerate(inner):
            groups = closed.last_groups[begin]
            impossible[row] |= outer == begin
            for group in groups:
                impossible[row] |= ~closed.holders[group, outer]
        if self.choices is not None:
            self._make_fit(inner, outer, load, impossible)
            impossible |= load >= limit_s
        load[impossible] = INFINITE
        return load

    def _make_fit(self, inner: Indices, outer: Indices, load: Floats, impossible: Booleans) -> None:
        """Add to ``load`` what recomputing costs at least."""
        assert self.choices is not None
        limit = self.choices.limit_bytes * (1 + EXACT)
        impossible |= self.least_bytes[outer][None, :] - self.least_bytes[inner][:, None] > limit
        if not self.choices.any:
            return
        over = self.held_bytes[outer][None, :] - self.held_bytes[inner][:, None] - limit
        row, column = np.nonzero((over > 0) & ~impossible)
        extra = np.zeros(len(row))
        for index, rate in enumerate(self.rates):
            priced = self.priced[outer[column], index] - self.priced[inner[row], index]
            np.maximum(extra, rate * over[row, column] + priced, out=extra)
        load[row, column] += extra * (1 - 1e-9)

    def true_load(self, inner: int, outer: int, most_s: float) -> float:
        """Return the load of one stage with the cheapest recomputation that lets it fit; infinite above ``most_s``."""
        closed = self.closed
        ones, weighted = closed.shared
        twice = (ones[inner] @ weighted[outer].T).toarray()[0, 0]
        load = float(
            closed.seconds[outer] + closed.open_s[outer] - closed.seconds[inner] + closed.open_s[inner] - twice
        )
        found = self.recomputed(inner, outer, most_s - load)
        return INFINITE if found is None else load + found[0]

    def recomputed(self, inner: int, outer: int, most_s: float = INFINITE) -> tuple[float, Indices] | None:
        """Return what the cheapest recomputation of a stage costs, and its nodes.

        None if nothing makes it fit, or only what costs more than ``most_s``.
        """
        if self.choices is None:
            return 0.0, np.empty(0, dtype=np.int64)
        nodes = self.closed.nodes_between(inner, outer)
        needed = float(self.choices.base_bytes[nodes].sum()) - self.choices.limit_bytes
        found = cheapest(self.choices.saved_bytes[nodes], self.choices.extra_s[nodes], needed, most_s)
        return None if found is None else (found[0], nodes[found[1]])


def _rates(choice: Choices) -> Floats:
    """Return prices of a byte, spread over the nodes' own: each gives a bound on what recomputing costs."""
    useful = choice.saved_bytes > 0
    if not useful.any():
        return np.empty(0)
    own = np.sort(choice.extra_s[useful] / choice.saved_bytes[useful])
    return np.unique(own[np.linspace(0, len(own) - 1, RATES).round().astype(np.int64)])
