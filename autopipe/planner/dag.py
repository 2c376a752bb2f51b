"""A graph of nodes that cost time and memory, to be cut into convex stages; and what a cut of it costs."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
import numpy.typing as npt

from autopipe.errors import InputError

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A value on its way: charged once to every stage that holds its source or a target, if they are several.

    ``backward_share`` is the part of the seconds that the backward pass spends.
    """

    source: int
    targets: tuple[int, ...]
    seconds: float
    size_bytes: float = 0.0
    backward_share: float = 0.0

    @property
    def ends(self) -> frozenset[int]:
        """The source and all targets."""
        return frozenset((self.source, *self.targets))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What every node costs when it is run in one way; arrays of shape (nodes,).

    ``fixed_bytes`` are held once, ``in_flight_bytes`` once for each micro-batch in flight.
    """

    seconds: Floats
    fixed_bytes: Floats
    in_flight_bytes: Floats


@dataclass(frozen=True, kw_only=True)
class Dag:
    """Nodes, what they cost plain and recomputed, the order between them, and what travels.

    Attributes
    ----------
    names : tuple of str
        One per node, as the file writes them.
    recomputed : Kind
        Equal to ``plain`` for nodes that have no such variant (``can_recompute`` tells).
    forward_s : Floats
        Shape (nodes,): the part of ``plain`` that the forward pass takes.
    edges : tuple of (int, int)
        The first node's stage may not come after the second's.
    devices : int
        The most stages.
    memory_bytes : float or None
        The limit of each device.
    stashes : bool
        Whether a stage holds as many micro-batches in flight as there are stages from it to the last, as under
        1F1B; otherwise it holds one.
    """

    name: str
    names: tuple[str, ...]
    plain: Kind
    recomputed: Kind
    can_recompute: Booleans
    forward_s: Floats
    edges: tuple[tuple[int, int], ...]
    transfers: tuple[Transfer, ...]
    devices: int
    memory_bytes: float | None = None
    stashes: bool = False

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.names)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The nodes, each after its predecessors, and otherwise as they are listed.

        Raises
        ------
        InputError
            If the edges form a cycle.
        """
        return topological_order(self.nodes, self.edges, self.names)

    def in_flight(self, stages_to_end: int) -> int:
        """Return how many micro-batches a stage holds that has so many stages from itself to the last."""
        return stages_to_end if self.stashes else 1


def topological_order(
    nodes: int, edges: Sequence[tuple[int, int]], names: Sequence[str] | None = None
) -> tuple[int, ...]:
    """Return the nodes, each after its predecessors; of those that are ready, the lowest first.

    Raises
    ------
    InputError
        If the edges form a cycle; the message names its nodes.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(nodes), ()))
    for first, second in edges:
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [names[node] if names else str(node) for node in error.args[1]]
        shown = " -> ".join(cycle if len(cycle) <= 8 else [*cycle[:7], "...", cycle[-1]])
        raise InputError(
            f"the edges form a cycle ({shown}): none of its nodes can run first. Remove one of these edges."
        ) from None
    ready = list(sorter.get_ready())
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        sorter.done(node)
        for follower in sorter.get_ready():
            heapq.heappush(ready, follower)
    return tuple(order)


@dataclass(frozen=True, kw_only=True)
class StageLoad:
    """One stage of a cut: time of its nodes, time of the transfers that touch it, and memory."""

    compute_s: float
    transfer_s: float
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """The load: what the stage is busy with for one micro-batch."""
        return self.compute_s + self.transfer_s


def stage_loads(dag: Dag, stage_of: Sequence[int], recompute: frozenset[int] = frozenset()) -> tuple[StageLoad, ...]:
    """Return the load of every stage, first to last, when node v is on stage ``stage_of[v]``.

    Parameters
    ----------
    stage_of : sequence of int
        Stages 0 to S - 1, none empty.
    recompute : frozenset of int
        The nodes that recompute.
    """
    stages = max(stage_of) + 1
    compute, transfer, memory = ([0.0] * stages for _ in range(3))
    for node, stage in enumerate(stage_of):
        kind = dag.recomputed if node in recompute else dag.plain
        compute[stage] += float(kind.seconds[node])
        held = dag.in_flight(stages - stage) * float(kind.in_flight_bytes[node])
        memory[stage] += float(kind.fixed_bytes[node]) + held
    for moved in dag.transfers:
        touched = {stage_of[node] for node in moved.ends}
        if len(touched) > 1:
            for stage in touched:
                transfer[stage] += moved.seconds
    return tuple(
        StageLoad(compute_s=compute[stage], transfer_s=transfer[stage], memory_bytes=memory[stage])
        for stage in range(stages)
    )
