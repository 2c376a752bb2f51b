"""Closed sets of a graph: with a group, all that comes before it. A boundary between stages is one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autopipe.planner.dag import Floats
from autopipe.planner.dag_contraction import Contraction
from autopipe.planner.deadline import NEVER, Deadline

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from autopipe.planner.dag_loads import Loads

BLOCK = 4096
FINENESS = 2.0**60
Members = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ClosedSets:
    """Some closed sets of a contraction, ascending in time and then in size: the first is empty, the last is all.

    Attributes
    ----------
    members : Members
        Shape (sets, groups), 1 where the set holds the group.
    seconds : Floats
        Shape (sets,): the time of what a set holds.
    open_s : Floats
        Shape (sets,): the transfers between a set and the rest.
    loads : dict from int to Loads
        Those that are known, by micro-batches in flight.
    """

    contraction: Contraction
    members: Members
    seconds: Floats
    open_s: Floats
    counts: csr_matrix
    loads: dict[int, Loads] = field(default_factory=dict, repr=False, compare=False)

    @property
    def size(self) -> int:
        """The number of sets."""
        return len(self.seconds)

    @cached_property
    def last_groups(self) -> tuple[npt.NDArray[np.int64], ...]:
        """By set, the groups without a successor in it: another closed set holds them only if it holds the set."""
        from scipy.sparse import csr_matrix

        size = self.contraction.size
        rows, columns = np.array(self.contraction.edges, dtype=np.int64).reshape(-1, 2).T
        followers = csr_matrix((np.ones(len(rows), dtype=np.int32), (columns, rows)), shape=(size, size))
        found: list[npt.NDArray[np.int64]] = []
        for begin in range(0, self.size, BLOCK):
            block = self.members[begin : begin + BLOCK]
            last = block.astype(bool) & ~((block @ followers) > 0)
            found.extend(np.flatnonzero(row) for row in last)
        return tuple(found)

    @cached_property
    def shared(self) -> tuple[csr_matrix, csr_matrix]:
        """Two matrices X, Y: (X @ Y.T)[i, j] is what the open transfers of i and of j count too often between them.

        A net that is open at both boundaries of a stage is counted twice: once too often where the stage holds
        one of its groups, and twice where it holds none, that is where both sets hold equally many.
        """
        from scipy.sparse import csr_matrix, hstack

        counts = self.counts.tocsr()
        seconds = np.array([net_s for _, net_s in self.contraction.nets])
        sizes = np.array([len(ends) for ends, _ in self.contraction.nets])
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        pattern = csr_matrix(
            (seconds[counts.indices], offsets[counts.indices] + counts.data, counts.indptr),
            shape=(self.size, int(offsets[-1]) + 1),
        )
        is_open = csr_matrix((seconds[counts.indices], counts.indices, counts.indptr), shape=counts.shape)
        weighted = hstack([is_open, pattern], format="csr")
        ones = weighted.copy()
        ones.data[:] = 1.0
        return ones, weighted

    @cached_property
    def holders(self) -> npt.NDArray[np.bool_]:
        """Shape (groups, sets): which sets hold a group."""
        return np.ascontiguousarray(self.members.T).astype(bool)

    def sums(self, by_node: Floats) -> Floats:
        """Return the sums over the nodes of every set of the columns of ``by_node``, shape (sets, columns)."""
        groups = self.contraction.groups
        by_group = np.array([by_node[list(nodes)].sum(axis=0) for nodes in groups]).reshape(len(groups), -1)
        blocks = [self.members[begin : begin + BLOCK] @ by_group for begin in range(0, self.size, BLOCK)]
        return np.concatenate(blocks)

    def nodes_between(self, inner: int, outer: int) -> npt.NDArray[np.int64]:
        """Return the nodes of the set ``outer`` that are not in ``inner``."""
        groups = np.flatnonzero(self.members[outer] & ~self.members[inner])
        return np.array([node for group in groups for node in self.contraction.groups[group]], dtype=np.int64)


def every_closed_set(contraction: Contraction, most: int, deadline: Deadline = NEVER) -> ClosedSets | None:
    """Return all closed sets, or None if there are more than ``most``.

    Raises
    ------
    OutOfTimeError
        If the deadline passes first.
    """
    needs = [_bits(groups) for groups in contraction.predecessors]
    level = {0: _bits(group for group, others in enumerate(contraction.predecessors) if not others)}
    found = [0]
    for _ in range(contraction.size):
        deadline.check()
        following: dict[int, int] = {}
        for held, ready in level.items():
            left = ready
            while left:
                bit = left & -left
                left ^= bit
                larger = held | bit
                if larger in following:
                    continue
                freed = ready ^ bit
                for follower in contraction.successors[bit.bit_length() - 1]:
                    if needs[follower] & ~larger == 0:
                        freed |= 1 << follower
                following[larger] = freed
        if len(found) + len(following) > most:
            return None
        found.extend(following)
        level = following
    return describe(contraction, _unpacked(found, contraction.size))


def sets_of_orders(contraction: Contraction, orders: Iterable[Sequence[int]]) -> ClosedSets:
    """Return the closed sets that the beginnings of some topological orders are."""
    found: dict[int, None] = {}
    for order in orders:
        found.update(dict.fromkeys(accumulate(order, lambda held, group: held | 1 << group, initial=0)))
    return describe(contraction, _unpacked(list(found), contraction.size))


def describe(contraction: Contraction, members: Members) -> ClosedSets:
    """Return the sets in the rows of ``members`` with their times, sorted."""
    seconds = _exact_seconds(contraction, members)
    by_time = np.lexsort((members.sum(axis=1, dtype=np.int64), seconds))
    members, seconds = members[by_time], seconds[by_time]
    counts = _counts(contraction, members)
    net_s = np.array([net_seconds for _, net_seconds in contraction.nets])
    open_s = np.add.reduceat(np.append(net_s[counts.indices], 0.0), counts.indptr[:-1]) if len(net_s) else 0.0
    open_s = np.where(np.diff(counts.indptr) > 0, open_s, 0.0)
    return ClosedSets(contraction=contraction, members=members, seconds=seconds, open_s=open_s, counts=counts)


def _exact_seconds(contraction: Contraction, members: Members) -> Floats:
    """Return the times of the sets, summed in whole numbers: a set never takes longer than one that holds it."""
    total = float(contraction.seconds.sum())
    scale = FINENESS / total if total > 0 else 0.0
    whole = np.rint(contraction.seconds * scale).astype(np.int64)
    blocks = [members[begin : begin + BLOCK] @ whole for begin in range(0, len(members), BLOCK)]
    return np.concatenate(blocks) / scale if total > 0 else np.zeros(len(members))


def _counts(contraction: Contraction, members: Members) -> csr_matrix:
    """Return how many groups of each net a set holds, where it holds some and not all; shape (sets, nets)."""
    from scipy.sparse import csr_matrix, vstack

    pairs = [(net, group) for net, (ends, _) in enumerate(contraction.nets) for group in ends]
    nets, groups = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    shape = (contraction.size, len(contraction.nets))
    incidence = csr_matrix((np.ones(len(nets), dtype=np.int16), (groups, nets)), shape=shape)
    sizes = np.bincount(nets, minlength=shape[1]).astype(np.int16)
    blocks = []
    for begin in range(0, len(members), BLOCK):
        held = (incidence.T @ members[begin : begin + BLOCK].T.astype(np.int16)).T
        held[held == sizes] = 0
        blocks.append(csr_matrix(held))
    return vstack(blocks, format="csr") if blocks else csr_matrix((0, shape[1]))


def _bits(groups: Iterable[int]) -> int:
    return sum(1 << group for group in groups)


def _unpacked(sets: Sequence[int], size: int) -> Members:
    width = -(-size // 8)
    packed = np.frombuffer(b"".join(held.to_bytes(width, "little") for held in sets), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(sets), width), axis=1, bitorder="little")[:, :size].copy()
