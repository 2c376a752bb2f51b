"""Levels of recompute: from none to all layers, what every interval costs with ever more of them."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from autopipe.costs.recompute import can_recompute, recomputing
from autopipe.costs.size import SizedProfile
from autopipe.costs.stages import Intervals
from autopipe.documents.profile import Cost

EVERY_SUBSET = 5
MOST_LEVELS = 24
MOST_ENTRIES = 600_000


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Costs of all intervals, with other layers recomputing at each level; none, or those that must, at the first.

    ``complete`` tells if every choice that may be made is among them.
    """

    intervals: tuple[Intervals, ...]
    complete: bool

    @property
    def base(self) -> Intervals:
        """The first level."""
        return self.intervals[0]

    def alone(self) -> "Levels":
        """Return the first level alone, as if no other could be chosen."""
        return Levels(intervals=self.intervals[:1], complete=True)


def fixed_level(sized: SizedProfile, layers: Collection[int] = ()) -> Levels:
    """Return the one level at which exactly ``layers`` recompute."""
    chosen = recomputing(sized, layers) if layers else sized
    return Levels(intervals=(Intervals.of(chosen),), complete=True)


def all_levels(sized: SizedProfile, base: Intervals | None = None) -> Levels:
    """Return the levels among which an interval may choose.

    Up to `EVERY_SUBSET` layers that can recompute, every subset is one. With more, each level holds the one
    before it: layers that free most a nanosecond come first, and among equal ones they are spread evenly, so
    that intervals of any place and length find as many of them as they need.

    Parameters
    ----------
    base : Intervals, optional
        Those of ``sized``, if they are made already.
    """
    able = recomputable(sized.costs)
    if len(able) <= EVERY_SUBSET:
        subsets = [chosen for count in range(1, len(able) + 1) for chosen in combinations(able, count)]
    else:
        ranking = sorted(able, key=lambda layer: (-_rate_class(sized.costs[layer]), _spread(able.index(layer))))
        most = max(1, min(MOST_LEVELS, MOST_ENTRIES // len(sized.costs) ** 2))
        counts = sorted({-(-len(able) * step // most) for step in range(1, most + 1)})
        subsets = [tuple(sorted(ranking[:count])) for count in counts]
    tables = tuple(Intervals.of(recomputing(sized, chosen)) for chosen in subsets)
    return Levels(intervals=(base or Intervals.of(sized), *tables), complete=len(able) <= EVERY_SUBSET)


def recomputable(costs: Sequence[Cost]) -> list[int]:
    """Return the layers that can recompute and would hold less if they did."""
    return [layer for layer, cost in enumerate(costs) if can_recompute(cost) and _freed(cost) > 0]


def _freed(cost: Cost) -> int:
    return cost.saved_bytes - (cost.saved_recompute_bytes or 0)


def _rate_class(cost: Cost) -> int:
    """Return what a layer frees a nanosecond of recompute, in steps of 10 %."""
    return round(math.log(_freed(cost) / max(1, cost.recompute_ns or 0)) / math.log(1.1))


def _spread(position: int) -> float:
    """Return the van der Corput number of ``position``: its bits behind the point, in reverse."""
    number, weight = 0.0, 0.5
    while position:
        number += weight * (position & 1)
        position, weight = position >> 1, weight / 2
    return number
