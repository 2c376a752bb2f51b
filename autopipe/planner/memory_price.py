"""A price of memory: what nodes that recompute or take up memory cost at least, whatever stage they are in."""

from dataclasses import dataclass

import numpy as np

from autopipe.planner.dag import Dag, Floats
from autopipe.planner.dag_contraction import Contraction
from autopipe.planner.dag_recompute import choices

TRIED = 32
EXACT = 1e-9


@dataclass(frozen=True, kw_only=True)
class MemoryPrice:
    """Times of groups with their memory at a price, and what each stage may take more for that.

    A stage whose bottleneck is at most T has groups of at most T + ``allowance_s`` with what it has open.

    Attributes
    ----------
    seconds : Floats
        Shape (groups,).
    allowance_s : Floats
        Shape (stages,): by stages to the end, less one; descending.

    Notes
    -----
    A Lagrangian bound. With a price u for a byte in a stage that has n micro-batches in flight, a node of t seconds
    and b bytes, that can save s bytes for e seconds, takes at least t + min(u b, e + u (b - s)) of T + u M, where M is
    the limit. With u = price / n the first is nearly the same for all stages, and its least over them is taken.
    """

    seconds: Floats
    allowance_s: Floats

    @classmethod
    def best(cls, contraction: Contraction, stages: int) -> "MemoryPrice":
        """Return the one with the largest `bound_s` of those tried; without a price where that is best."""
        free = cls(seconds=contraction.seconds, allowance_s=np.zeros(stages))
        tried = (_priced(contraction, stages, float(price)) for price in _prices(contraction.dag, stages))
        return max((free, *tried), key=lambda one: one.bound_s)

    @property
    def bound_s(self) -> float:
        """A time under which no bottleneck can be."""
        return float(self.seconds.sum() - self.allowance_s.sum()) / len(self.allowance_s)

    def before_s(self, most_s: float) -> Floats:
        """Return the most that stage k may take of a plan of bottleneck ``most_s``, shape (stages,); k from 0 on.

        How many stages follow is not known, but how many there must be at least.
        """
        stages = len(self.allowance_s)
        room = np.cumsum(most_s + self.allowance_s)
        least = int(np.searchsorted(room, float(self.seconds.sum()) * (1 - EXACT))) + 1
        to_end = np.maximum(min(least, stages) - np.arange(stages), 1)
        return most_s + self.allowance_s[to_end - 1]


def _prices(dag: Dag, stages: int) -> Floats:
    """Return prices at which one or another node changes from holding to recomputing."""
    found = []
    for in_flight in {dag.in_flight(1), dag.in_flight(stages)}:
        choice = choices(dag, in_flight)
        if choice is None or not choice.any:
            return np.empty(0)
        useful = choice.saved_bytes > 0
        found.append(in_flight * choice.extra_s[useful] / choice.saved_bytes[useful])
    own = np.sort(np.concatenate(found))
    return np.unique(own[np.linspace(0, len(own) - 1, TRIED).round().astype(np.int64)])


def _priced(contraction: Contraction, stages: int, price: float) -> MemoryPrice:
    dag, priced, allowance = contraction.dag, [], []
    for to_end in range(1, stages + 1):
        byte_s = price / dag.in_flight(to_end)
        choice = choices(dag, dag.in_flight(to_end))
        assert choice is not None, "a price has been found"
        held = byte_s * choice.base_bytes
        priced.append(held + np.minimum(0.0, choice.extra_s - byte_s * choice.saved_bytes))
        allowance.append(byte_s * choice.limit_bytes * (1 + EXACT))
    by_node = contraction.node_seconds + np.min(priced, axis=0)
    by_group = np.array([by_node[list(nodes)].sum() for nodes in contraction.groups])
    return MemoryPrice(seconds=by_group, allowance_s=np.array(allowance))
