"""A planning problem: what every interval of layers costs as every stage, for one micro-batch size and schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autopipe.costs.memory import rank_memory
from autopipe.costs.stages import Intervals
from autopipe.costs.tables import Table
from autopipe.costs.time import all_reduce_ns
from autopipe.hardware.cluster import Cluster, Link
from autopipe.schedules.named import make
from autopipe.schedules.residency import StageHolding, stage_holdings

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A parameter that several layers read, and the time to sum its gradients if they are on two ranks."""

    name: str
    layers: tuple[int, ...]
    cost_ns: int


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Tables by stage; entry [begin, end] of each, shape (L + 1, L + 1), speaks of layers begin to end - 1.

    Attributes
    ----------
    forward_ns, compute_ns : tuple of Table
        Forward, and forward and backward, of one micro-batch on the stage's device.
    hop_ns : tuple of Table
        A micro-batch's way into the stage and its gradient's way back, 0 for the first stage.
    pace_ns : tuple of Table
        The least time between two micro-batches: the stage's own, or what occupies the link into it.
    optimizer_ns, memory_bytes : tuple of Table
    legal, allowed : tuple of Mask
        Whether the stage may be that interval: cuts are legal and every other stage finds a layer; and whether
        it fits in memory too.
    limits : tuple of int or None
        Memory of the stage's device in bytes, None where not known.
    in_flight : tuple of int
        The most micro-batches that the schedule has in flight at the stage.
    tied : tuple of Tied
    """

    intervals: Intervals
    cluster: Cluster
    schedule: str
    micro_batches: int
    forward_ns: tuple[Table, ...]
    compute_ns: tuple[Table, ...]
    hop_ns: tuple[Table, ...]
    pace_ns: tuple[Table, ...]
    optimizer_ns: tuple[Table, ...]
    memory_bytes: tuple[Table, ...]
    legal: tuple[Mask, ...]
    allowed: tuple[Mask, ...]
    limits: tuple[int | None, ...]
    in_flight: tuple[int, ...]
    tied: tuple[Tied, ...]

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return self.intervals.times.layers

    @property
    def stages(self) -> int:
        """The number of stages, one per rank."""
        return len(self.compute_ns)

    @property
    def micro_batch_size(self) -> int:
        """In samples."""
        return self.intervals.sized.micro_batch_size

    def turns(self, stage: int) -> bool:
        """Tell whether the stage ever waits for a micro-batch to come back before it takes the next one in."""
        return self.micro_batches > self.in_flight[stage]


def make_problem(intervals: Intervals, cluster: Cluster, *, schedule: str, stages: int, micro_batches: int) -> Problem:
    """Return the problem of cutting the layers into ``stages`` stages, stage s on device s of ``cluster``.

    Notes
    -----
    Memory is O(stages * L^2).
    """
    times, memory = intervals.times, intervals.memory
    devices = cluster.devices[:stages]
    links = [Link(), *(cluster.link(stage - 1, stage) for stage in range(1, stages))]
    forward = {device.speed: _scaled(times.forward_ns, device.speed) for device in devices}
    compute = {speed: own + _scaled(times.backward_ns, speed) for speed, own in forward.items()}
    optimizer = {device.speed: _scaled(times.optimizer_ns, device.speed) for device in devices}
    hop = {link: _hop(intervals, link) for link in links[1:]}
    pace = {
        (device.speed, link): np.maximum(compute[device.speed], _occupied(intervals, link))
        for device, link in zip(devices, links, strict=True)
    }
    holdings = largest_holdings(schedule, stages, micro_batches)
    needed = tuple(
        rank_memory(memory, times, held, stage=stage, stages=stages, micro_batches=micro_batches)
        for stage, held in enumerate(holdings)
    )
    limits = tuple(device.memory_bytes for device in devices)
    legal = _legal(intervals, stages)
    return Problem(
        intervals=intervals,
        cluster=cluster,
        schedule=schedule,
        micro_batches=micro_batches,
        forward_ns=tuple(forward[device.speed] for device in devices),
        compute_ns=tuple(compute[device.speed] for device in devices),
        hop_ns=(np.zeros_like(times.forward_ns), *(hop[link] for link in links[1:])),
        pace_ns=tuple(pace[device.speed, link] for device, link in zip(devices, links, strict=True)),
        optimizer_ns=tuple(optimizer[device.speed] for device in devices),
        memory_bytes=needed,
        legal=legal,
        allowed=tuple(
            mask if limit is None else mask & (table <= limit)
            for mask, table, limit in zip(legal, needed, limits, strict=True)
        ),
        limits=limits,
        in_flight=tuple(1 + max(one.in_flight for one in held) for held in holdings),
        tied=_tied(intervals, cluster, stages),
    )


def without_limits(problem: Problem) -> Problem:
    """Return ``problem`` with every legal interval allowed, whether it fits or not."""
    return replace(problem, allowed=problem.legal)


def largest_holdings(schedule: str, stages: int, micro_batches: int) -> tuple[tuple[StageHolding, ...], ...]:
    """Return `stage_holdings` of a named schedule, without walking through all its micro-batches.

    From 2 * stages + 8 micro-batches on, what a rank holds repeats itself: 1F1B's stays the same, and
    GPipe's grows by one in flight for each further micro-batch.
    """
    walked = min(micro_batches, 2 * stages + 8)
    rows = stage_holdings(make(schedule, stages=stages, micro_batches=walked))
    grows = micro_batches - walked if schedule == "gpipe" else 0
    return tuple(
        tuple(
            StageHolding(
                in_flight=held.in_flight + grows,
                inputs=held.inputs,
                gradients=held.gradients,
                outputs=held.outputs,
                input_gradients=held.input_gradients,
            )
            for held in row
        )
        for row in rows
    )


def objective_ns(problem: Problem, bounds: Sequence[int]) -> int:
    """Return the solver's objective for the split at ``bounds``: an estimate of the step.

    It is (m-1) * T + the sum of all stages' computations and hops + the longest optimizer + tied gradients,
    where T is the pace: the time between two micro-batches in the steady state.
    """
    spans = tuple(zip(range(problem.stages), bounds, bounds[1:], strict=False))
    total = sum(int(problem.compute_ns[s][i, j] + problem.hop_ns[s][i, j]) for s, i, j in spans)
    optimizer = max(int(problem.optimizer_ns[s][i, j]) for s, i, j in spans)
    apart = sum(
        tied.cost_ns
        for tied in problem.tied
        if not any(i <= tied.layers[0] and tied.layers[-1] < j for _, i, j in spans)
    )
    return (problem.micro_batches - 1) * pace_ns(problem, bounds) + total + optimizer + apart


def pace_ns(problem: Problem, bounds: Sequence[int]) -> int:
    """Return the least time between two micro-batches of the split at ``bounds``.

    No less than any stage or link takes for one; and while a micro-batch travels from stage s to the end and
    back, s can take in no more than it may have in flight.
    """
    pace = round_trip = 0
    for stage in reversed(range(problem.stages)):
        at = bounds[stage], bounds[stage + 1]
        round_trip += int(problem.compute_ns[stage][at])
        pace = max(pace, int(problem.pace_ns[stage][at]))
        if problem.turns(stage):
            pace = max(pace, -(-round_trip // problem.in_flight[stage]))
        round_trip += int(problem.hop_ns[stage][at])
    return pace


def _legal(intervals: Intervals, stages: int) -> tuple[Mask, ...]:
    """Return, per stage, the intervals between legal cuts that leave every other stage at least one layer."""
    layers = intervals.times.layers
    cut = np.ones(layers + 1, dtype=bool)
    cut[[position for position in intervals.sized.profile.forbidden_cuts if 0 < position < layers]] = False
    places = np.cumsum(cut)
    before, after = places - 1, places[-1] - places
    masks = []
    for stage in range(stages):
        begins = cut & ((before == 0) if stage == 0 else (before >= stage))
        ends = cut & ((after == 0) if stage == stages - 1 else (after >= stages - 1 - stage))
        masks.append(np.triu(begins[:, None] & ends[None, :], k=1))
    return tuple(masks)


def _hop(intervals: Intervals, link: Link) -> Table:
    times = intervals.times
    latency = link.latency_ns or 0
    there = np.where(times.inputs > 0, latency + _transmit(times.input_bytes, link), 0)
    back = np.where(times.input_gradients > 0, latency + _transmit(times.input_gradient_bytes, link), 0)
    return there + back


def _occupied(intervals: Intervals, link: Link) -> Table:
    times = intervals.times
    return np.maximum(_transmit(times.input_bytes, link), _transmit(times.input_gradient_bytes, link))


def _transmit(size_bytes: Table, link: Link) -> Table:
    if link.bytes_per_s is None:
        return np.zeros_like(size_bytes)
    return np.ceil(np.maximum(size_bytes, 0) * (1e9 / link.bytes_per_s)).astype(np.int64)


def _scaled(table: Table, speed: float) -> Table:
    # Rounded up as in `costs.stages.scaled`: sums of stages then never fall under the scaled sum of their layers.
    return table if speed == 1.0 else np.ceil(table / speed).astype(np.int64)


def _tied(intervals: Intervals, cluster: Cluster, stages: int) -> tuple[Tied, ...]:
    link = cluster.link(0, stages - 1)
    return tuple(
        Tied(name=shared.name, layers=shared.layers, cost_ns=all_reduce_ns(shared.bytes, 2, link))
        for shared in intervals.sized.profile.shared
        if stages > 1 and len(shared.layers) > 1
    )
