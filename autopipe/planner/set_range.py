"""A range of closed sets, all that lie between two, and the best of them: by minimum cuts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autopipe.planner.dag import Booleans, Floats
from autopipe.planner.dag_contraction import Contraction
from autopipe.planner.deadline import NEVER, Deadline

CAPACITY = 1 << 29
UNCUTTABLE = 1 << 30
SOURCE, SINK = 0, 1
SAME = 1e-10


@dataclass(frozen=True, kw_only=True)
class Range:
    """The closed sets that hold all of ``inside`` and none of ``outside``, and bounds on what they are worth.

    For a boundary at a closed set, a is what the set computes and has open, and b what it computes less what it
    has open: the stage from one boundary to the next takes a of the next less b of the one, less what is open at
    both. So a small a and a large b are good.

    Attributes
    ----------
    inside, outside : Booleans
        Shape (groups,).
    least_a, most_b : float
        No set of the range is below or above.
    lines : tuple of (float, float)
        For each (c, slope): b <= c + slope * a for every set of the range.
    sets : tuple of Booleans
        Sets on the hull of the range, shape (groups,) each.
    """

    inside: Booleans
    outside: Booleans
    least_a: float
    most_b: float
    lines: tuple[tuple[float, float], ...]
    sets: tuple[Booleans, ...]

    @property
    def free(self) -> Booleans:
        """The groups that some sets of the range hold and others do not."""
        return ~self.inside & ~self.outside


class Cuts:
    """Minimum cuts of one contraction: they find the closed set of a range that is best for a price of time.

    Parameters
    ----------
    seconds : Floats
        Shape (groups,): the times to compute with, at least 0.
    """

    def __init__(self, contraction: Contraction, seconds: Floats, deadline: Deadline = NEVER) -> None:
        self.contraction = contraction
        self.seconds = seconds
        self._deadline = deadline
        self.net_s = np.array([seconds for _, seconds in contraction.nets])
        self.incidence = np.zeros((len(contraction.nets), contraction.size))
        for net, (ends, _) in enumerate(contraction.nets):
            self.incidence[net, list(ends)] = 1.0
        self.net_sizes = self.incidence.sum(axis=1)
        self._arcs = _arcs(contraction, self.before)

    @cached_property
    def before(self) -> Booleans:
        """Shape (groups, groups): row v holds v and all that come before it."""
        size = self.contraction.size
        before = np.eye(size, dtype=bool)
        for group in range(size):
            for other in self.contraction.predecessors[group]:
                before[group] |= before[other]
        return before

    @cached_property
    def after(self) -> Booleans:
        """Shape (groups, groups): row v holds v and all that come after it."""
        return np.ascontiguousarray(self.before.T)

    def ends(self, held: Booleans) -> tuple[float, float]:
        """Return (a, b) of a closed set."""
        count = self.incidence @ held
        is_open = float(self.net_s[(count > 0) & (count < self.net_sizes)].sum())
        computed = float(self.seconds[held].sum())
        return computed + is_open, computed - is_open

    def range(self, inside: Booleans, outside: Booleans) -> Range:
        """Return the range with the upper hull of its sets' (a, b), found edge by edge.

        Raises
        ------
        OutOfTimeError
            If the deadline passes first.
        """
        lowest, low_error = self._best(inside, outside, -1.0)
        highest, high_error = self._best(inside, outside, 1.0)
        sets = [lowest, highest]
        lines: list[tuple[float, float]] = []
        first, last = self.ends(lowest), self.ends(highest)
        edges = [(first, last)]
        while edges:
            left, right = edges.pop()
            if right[0] - left[0] < SAME or right[1] - left[1] < SAME:
                continue
            slope = (right[1] - left[1]) / (right[0] - left[0])
            found, error = self._best(inside, outside, (1 - slope) / (1 + slope))
            a, b = self.ends(found)
            above = max(b - slope * a, right[1] - slope * right[0])
            lines.append((above + (1 + slope) * error, slope))
            if b - slope * a > right[1] - slope * right[0] + SAME:
                sets.append(found)
                edges += [(left, (a, b)), ((a, b), right)]
        return Range(
            inside=inside,
            outside=outside,
            least_a=first[0] - low_error,
            most_b=last[1] + high_error,
            lines=tuple(lines),
            sets=tuple(sets),
        )

    def _best(self, inside: Booleans, outside: Booleans, price: float) -> tuple[Booleans, float]:
        """Return the set with the least (open transfers - price * computed), and how far from the least it can be.

        A minimum cut: what is on the source's side is in the set, and what a group needs is uncuttably tied to
        it (Picard, "Maximal closure of a graph", 1976). Capacities are whole numbers, which is the error.
        """
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        free = np.flatnonzero(~inside & ~outside)
        if not len(free):
            return inside.copy(), 0.0
        self._deadline.check()
        tails, heads, capacities, uncuttable, auxiliary = self._network(inside, outside, free)
        worth = price * self.seconds[free]
        at = np.arange(2, 2 + len(free))
        tails = np.concatenate([tails, np.full(len(free), SOURCE) if price > 0 else at])
        heads = np.concatenate([heads, at if price > 0 else np.full(len(free), SINK)])
        exact = np.concatenate([capacities, np.abs(worth)])
        uncuttable = np.concatenate([uncuttable, np.zeros(len(free), dtype=bool)])
        total = float(exact[~uncuttable].sum())
        scale = CAPACITY / total if total > 1e-200 else 1.0
        rounded = np.where(uncuttable, UNCUTTABLE, np.rint(exact * scale))
        error = 2 * float(np.abs(rounded / scale - exact)[~uncuttable].sum())
        size = 2 + len(free) + auxiliary
        network = csr_matrix((rounded, (tails, heads)), shape=(size, size))
        network.data = np.minimum(network.data, UNCUTTABLE).astype(np.int32)
        network.eliminate_zeros()
        left = network - maximum_flow(network, SOURCE, SINK).flow
        left.data = (left.data > 0).astype(np.int8)
        left.eliminate_zeros()
        reached = np.zeros(size, dtype=bool)
        reached[breadth_first_order(left, SOURCE, return_predecessors=False)] = True
        held = inside.copy()
        held[free] = reached[2 : 2 + len(free)]
        return held, error

    def _network(
        self, inside: Booleans, outside: Booleans, free: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats, Booleans, int]:
        """Return tails, heads, seconds and kind of the arcs between source, sink, free groups and auxiliary nodes."""
        arcs = self._arcs
        decided_in, decided_out = self.incidence @ inside, self.incidence @ outside
        undecided = (decided_in < self.net_sizes) & (decided_out < self.net_sizes)
        undecided &= ~((decided_in > 0) & (decided_out > 0))
        place = np.full(arcs.nodes, -1, dtype=np.int64)
        size = self.contraction.size
        place[:size][inside] = SOURCE
        place[:size][outside] = SINK
        place[free] = np.arange(2, 2 + len(free))
        kept = np.flatnonzero(np.append(undecided, True)[arcs.owner])
        used = np.unique(np.concatenate([arcs.tails[kept], arcs.heads[kept]]))
        used = used[used >= size]
        place[used] = np.arange(2 + len(free), 2 + len(free) + len(used))
        tails, heads = place[arcs.tails[kept]], place[arcs.heads[kept]]
        useful = (tails != heads) & (tails != SINK) & (heads != SOURCE)
        kept = kept[useful]
        return tails[useful], heads[useful], arcs.seconds[kept], arcs.uncuttable[kept], len(used)


@dataclass(frozen=True, kw_only=True)
class _Arcs:
    """Arcs of the whole network; those of a net have its index as ``owner``, those of the order -1."""

    nodes: int
    tails: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int64]
    seconds: Floats
    uncuttable: Booleans
    owner: npt.NDArray[np.int64]


def _arcs(contraction: Contraction, before: Booleans) -> _Arcs:
    """Return the arcs that make a cut cost what is open.

    A net whose first group comes before all others is open where the first is held and some other is not; of any
    other net, some group is held and some is not. An auxiliary node or two gather the groups of a net.
    """
    nodes = contraction.size
    arcs: list[tuple[int, int, float, bool, int]] = [
        (later, first, 0.0, True, -1) for first, later in contraction.edges
    ]
    for net, (ends, seconds) in enumerate(contraction.nets):
        is_first = all(before[other, ends[0]] for other in ends)
        if is_first and len(ends) == 2:
            arcs.append((ends[0], ends[1], seconds, False, net))
        elif is_first:
            arcs.append((ends[0], nodes, seconds, False, net))
            arcs += [(nodes, other, 0.0, True, net) for other in ends[1:]]
            nodes += 1
        else:
            some, all_but = nodes, nodes + 1
            arcs.append((some, all_but, seconds, False, net))
            arcs += [(group, some, 0.0, True, net) for group in ends]
            arcs += [(all_but, group, 0.0, True, net) for group in ends]
            nodes += 2
    tails, heads, times, uncuttable, owner = zip(*arcs, strict=True) if arcs else ((), (), (), (), ())
    return _Arcs(
        nodes=nodes,
        tails=np.array(tails, dtype=np.int64),
        heads=np.array(heads, dtype=np.int64),
        seconds=np.array(times, dtype=np.float64),
        uncuttable=np.array(uncuttable, dtype=bool),
        owner=np.array(owner, dtype=np.int64),
    )
