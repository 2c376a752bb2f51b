"""Nodes that some best cut keeps together are contracted into groups, which leaves far fewer cuts to look at."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopipe.planner.dag import Dag, Floats, topological_order


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """A graph of groups of nodes, numbered in a topological order.

    Attributes
    ----------
    groups : tuple of tuple of int
        The nodes of each group.
    node_seconds : Floats
        Time of each node, run in its faster way.
    edges : tuple of (int, int)
        Between groups, ascending, each once.
    nets : tuple of (tuple of int, float)
        The groups that share transfers, ascending, and their seconds together: they are charged to every
        stage that holds one of the groups, as soon as there are two such stages.
    """

    dag: Dag
    groups: tuple[tuple[int, ...], ...]
    node_seconds: Floats
    edges: tuple[tuple[int, int], ...]
    nets: tuple[tuple[tuple[int, ...], float], ...]

    @property
    def size(self) -> int:
        """The number of groups."""
        return len(self.groups)

    @cached_property
    def seconds(self) -> Floats:
        """By group, the time of its nodes."""
        return np.array([self.node_seconds[list(nodes)].sum() for nodes in self.groups])

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """By group, ascending."""
        return _neighbours(self.size, ((second, first) for first, second in self.edges))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """By group, ascending."""
        return _neighbours(self.size, self.edges)

    @cached_property
    def nets_of(self) -> tuple[tuple[int, ...], ...]:
        """By group, the indices of its nets."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for index, (ends, _) in enumerate(self.nets):
            for group in ends:
                found[group].append(index)
        return tuple(map(tuple, found))


def uncontracted(dag: Dag, seconds: Floats) -> Contraction:
    """Return ``dag`` with every node a group of its own, at ``seconds`` each."""
    return _quotient(dag, seconds, np.arange(dag.nodes))


def contract(contraction: Contraction, together: Iterable[Sequence[int]]) -> Contraction:
    """Return the graph in which each set of groups in ``together`` is one group.

    What lies on a path between two members joins them: a stage is convex.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size = contraction.size
    links = [(first, other) for members in together for first, other in _both_ways(members)]
    rows, columns = np.array([*contraction.edges, *links], dtype=np.int64).reshape(-1, 2).T
    matrix = coo_matrix((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(size, size))
    _, label = connected_components(matrix, directed=True, connection="strong")
    owner = np.empty(contraction.dag.nodes, dtype=np.int64)
    for group, members in enumerate(contraction.groups):
        owner[list(members)] = label[group]
    return _quotient(contraction.dag, contraction.node_seconds, owner)


def contract_dominated(contraction: Contraction) -> Contraction:
    """Return the graph in which groups are joined that no cut gains by separating, memory aside.

    A group whose only successor shares transfers with it alone that take at least as long as the group itself
    and all its other transfers together moves to that successor's stage without making any stage slower, and
    likewise to an only predecessor's.
    """
    while True:
        together = _dominated(contraction)
        if not together:
            return contraction
        contraction = contract(contraction, together)


def contract_uncuttable(contraction: Contraction, most_s: float, slack_s: float) -> Contraction:
    """Return the graph in which groups are joined that no cut with a bottleneck under ``most_s`` separates.

    Parameters
    ----------
    slack_s : float
        The most that the open transfers of a boundary may take: half of what all stages together could bear
        above the computation.
    """
    while True:
        together = [
            ends
            for ends, seconds in contraction.nets
            if seconds >= slack_s or seconds + contraction.seconds[list(ends)].max() >= most_s
        ]
        if not together:
            return contraction
        contraction = contract(contraction, together)


def _dominated(contraction: Contraction) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    moved: set[int] = set()
    private: dict[tuple[int, ...], float] = defaultdict(float)
    for ends, seconds in contraction.nets:
        if len(ends) == 2:
            private[ends] += seconds
    attached = [sum(contraction.nets[net][1] for net in nets) for nets in contraction.nets_of]
    for group in range(contraction.size):
        for neighbours in (contraction.successors[group], contraction.predecessors[group]):
            if len(neighbours) != 1 or group in moved or neighbours[0] in moved:
                continue
            pair = (min(group, neighbours[0]), max(group, neighbours[0]))
            shared = private.get(pair, 0.0)
            if contraction.seconds[group] + attached[group] - shared <= shared:
                joined.append(pair)
                moved.update(pair)
    return joined


def _quotient(dag: Dag, seconds: Floats, owner: np.ndarray) -> Contraction:
    """Return the graph of the groups of nodes with equal ``owner``."""
    labels, owner = np.unique(owner, return_inverse=True)
    edges = {(int(owner[first]), int(owner[second])) for first, second in dag.edges}
    edges = {(first, second) for first, second in edges if first != second}
    rank = np.empty(len(labels), dtype=np.int64)
    lowest = np.full(len(labels), dag.nodes)
    place = np.empty(dag.nodes, dtype=np.int64)
    place[list(dag.order)] = np.arange(dag.nodes)
    np.minimum.at(lowest, owner, place)
    by_place = np.argsort(lowest, kind="stable")
    to_place = np.empty_like(by_place)
    to_place[by_place] = np.arange(len(labels))
    order = topological_order(len(labels), [(int(to_place[a]), int(to_place[b])) for a, b in edges])
    rank[by_place[list(order)]] = np.arange(len(labels))
    owner = rank[owner]
    groups: list[list[int]] = [[] for _ in labels]
    for node in dag.order:
        groups[owner[node]].append(node)
    nets: dict[tuple[int, ...], float] = defaultdict(float)
    for transfer in dag.transfers:
        ends = tuple(sorted({int(owner[node]) for node in transfer.ends}))
        if len(ends) > 1 and transfer.seconds > 0:
            nets[ends] += transfer.seconds
    return Contraction(
        dag=dag,
        groups=tuple(map(tuple, groups)),
        node_seconds=seconds,
        edges=tuple(sorted({(int(rank[first]), int(rank[second])) for first, second in edges})),
        nets=tuple(sorted(nets.items())),
    )


def _both_ways(members: Sequence[int]) -> Iterable[tuple[int, int]]:
    for other in members[1:]:
        yield members[0], other
        yield other, members[0]


def _neighbours(size: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(size)]
    for group, other in pairs:
        found[group].append(other)
    return tuple(tuple(sorted(others)) for others in found)
