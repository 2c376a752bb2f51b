"""What the stages of one split cost, and what travels between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from autopipe.costs.memory import IntervalMemory, interval_memory
from autopipe.costs.size import SizedProfile
from autopipe.costs.tables import Table
from autopipe.costs.time import IntervalTimes, all_reduce_ns, interval_times
from autopipe.hardware.cluster import Link, Ranks
from autopipe.schedules.comms import Edge
from autopipe.schedules.edges import stage_edges, stage_of


class StageCost(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: its times for one micro-batch and per step, its memory.

    ``working_bytes`` is the peak of the micro-batch in hand above ``saved_bytes``, ``forward_working_bytes`` that of
    its forward alone (None: as high); ``tied_ns`` the time to
    sum the gradients of parameters that other ranks hold too, ``replica_ns`` that to sum all over the
    replicas. ``input_grad_ns`` and ``weight_grad_ns`` are the two parts of the backward, None where they were
    not measured.
    """

    forward_ns: int
    backward_ns: int
    input_grad_ns: int | None = None
    weight_grad_ns: int | None = None
    optimizer_ns: int = 0
    tied_ns: int = 0
    replica_ns: int = 0
    parameter_bytes: int = 0
    state_bytes: int = 0
    saved_bytes: int = 0
    working_bytes: int = 0
    forward_working_bytes: int | None = None


class EdgeCost(msgspec.Struct, frozen=True, kw_only=True):
    """One edge: the bytes of one micro-batch in each direction, and the link that carries them.

    ``unsaved_bytes`` of the forward's are held by the sending stage until they have left only; the others it
    saves for its backward anyway. None stands for all of them.
    """

    edge: Edge
    forward_bytes: int = 0
    backward_bytes: int = 0
    unsaved_bytes: int | None = None
    link: Link = Link()


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Times and memory of every interval of layers at one micro-batch size."""

    sized: SizedProfile
    times: IntervalTimes
    memory: IntervalMemory

    @classmethod
    def of(cls, sized: SizedProfile) -> "Intervals":
        """Return the tables of ``sized``."""
        times = interval_times(sized)
        return cls(sized=sized, times=times, memory=interval_memory(sized, times))


def stage_costs(
    intervals: Intervals, cluster: Ranks, bounds: Sequence[int], stage_ranks: Sequence[int]
) -> tuple[StageCost, ...]:
    """Return the cost of every stage of the split at ``bounds`` = (0, b1, ..., L), on the device of its rank."""
    times, memory = intervals.times, intervals.memory
    tied = tied_times(intervals.sized, cluster, bounds, stage_ranks)
    costs = []
    for stage, rank in enumerate(stage_ranks):
        at = bounds[stage], bounds[stage + 1]
        speed = cluster.devices[rank].speed
        saved = int(memory.saved[at])
        costs.append(
            StageCost(
                forward_ns=scaled(int(times.forward_ns[at]), speed),
                backward_ns=scaled(int(times.backward_ns[at]), speed),
                input_grad_ns=_part(times.input_grad_ns, at, speed),
                weight_grad_ns=_part(times.weight_grad_ns, at, speed),
                optimizer_ns=scaled(int(times.optimizer_ns[at]), speed),
                tied_ns=tied[stage],
                parameter_bytes=int(memory.parameters[at]),
                state_bytes=int(memory.state[at]),
                saved_bytes=saved,
                working_bytes=int(memory.peak[at]) - saved,
                forward_working_bytes=int(memory.forward_peak[at]) - saved,
            )
        )
    return tuple(costs)


def edge_costs(
    sized: SizedProfile, cluster: Ranks, bounds: Sequence[int], stage_ranks: Sequence[int]
) -> tuple[EdgeCost, ...]:
    """Return every edge between the stages of a split, ascending, with what it carries for one micro-batch."""
    values = sized.profile.values
    owner = stage_of(bounds)
    forward: dict[tuple[int, int], int] = {}
    unsaved: dict[tuple[int, int], int] = {}
    backward: dict[tuple[int, int], int] = {}
    for value, size, held in zip(values, sized.value_bytes, sized.unsaved_bytes, strict=True):
        if value.is_rebuilt:
            continue
        source = owner[value.producer]
        for target in {owner[consumer] for consumer in value.consumers} - {source}:
            forward[source, target] = forward.get((source, target), 0) + size
            unsaved[source, target] = unsaved.get((source, target), 0) + held
            if value.requires_grad:
                backward[source, target] = backward.get((source, target), 0) + size
    return tuple(
        EdgeCost(
            edge=edge,
            forward_bytes=forward[edge.source, edge.target],
            backward_bytes=backward.get((edge.source, edge.target), 0),
            unsaved_bytes=unsaved[edge.source, edge.target],
            link=cluster.link(stage_ranks[edge.source], stage_ranks[edge.target]),
        )
        for edge in stage_edges(values, bounds)
    )


def tied_times(
    sized: SizedProfile, cluster: Ranks, bounds: Sequence[int], stage_ranks: Sequence[int]
) -> tuple[int, ...]:
    """Return, per stage, the time to sum the gradients of the parameters it shares with stages of other ranks."""
    owner = stage_of(bounds)
    spent = [0] * len(stage_ranks)
    for shared in sized.profile.shared:
        holders = sorted({owner[layer] for layer in shared.layers})
        ranks = sorted({stage_ranks[stage] for stage in holders})
        link = cluster.link(ranks[0], ranks[-1])
        for stage in holders:
            spent[stage] += all_reduce_ns(shared.bytes, len(ranks), link)
    return tuple(spent)


def _part(table: Table | None, at: tuple[int, int], speed: float) -> int | None:
    return None if table is None else scaled(int(table[at]), speed)


def scaled(duration_ns: int, speed: float) -> int:
    """Return a duration on a device ``speed`` times as fast as the profiled one, rounded up."""
    return duration_ns if speed == 1.0 else math.ceil(duration_ns / speed)
