"""The tables of each stage: what every interval of layers would cost as that stage, on its device, over its link."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import astuple
from msgspec.structs import replace as replace_fields

from autopipe.costs.memory import IntervalMemory, holding_bytes
from autopipe.costs.recompute import can_recompute
from autopipe.costs.stages import Intervals
from autopipe.costs.tables import Table, between, prefix
from autopipe.costs.time import IntervalTimes
from autopipe.documents.profile import Cost
from autopipe.hardware.cluster import Device, Link
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.levels import Levels
from autopipe.planner.places import Mask
from autopipe.schedules.moments import Moment
from autopipe.schedules.residency import StageHolding

NO_LINK = Link()

Part = tuple[slice, slice]
WHOLE = slice(None), slice(None)
Tables = TypeVar("Tables", IntervalTimes, IntervalMemory)
Entries = TypeVar("Entries", Table, Mask)


@dataclass(frozen=True, kw_only=True)
class StageTables:
    """The tables of one stage, as `Problem` has them."""

    level: Table
    forward_ns: Table
    compute_ns: Table
    least_ns: Table
    input_ns: Table | None
    hop_ns: Table
    pace_ns: Table
    tail_ns: Table
    allowed: Mask
    possible: Mask
    in_flight: int


class CostTables:
    """Tables by device speed and by link, each made once however many stages share it."""

    def __init__(self, levels: Levels, grid: DeviceGrid) -> None:
        self.levels = levels.intervals
        self.complete = levels.complete
        self.grid = grid
        self._made: dict[tuple[object, ...], Table] = {}

    def _once(self, key: tuple[object, ...], table: Callable[[], Table]) -> Table:
        if key not in self._made:
            self._made[key] = table()
        return self._made[key]

    def forward(self, speed: float) -> Table:
        """Return the forward of one micro-batch."""
        return self._once(("forward", speed), lambda: _scaled(self.levels[0].times.forward_ns, speed))

    def compute(self, level: int, speed: float) -> Table:
        """Return forward and backward of one micro-batch."""
        backward = self.levels[level].times.backward_ns
        return self._once(("compute", level, speed), lambda: self.forward(speed) + _scaled(backward, speed))

    def inputs(self, speed: float) -> Table | None:
        """Return the forward and the input-gradient part of the backward, None where that was not measured."""
        part = self.levels[0].times.input_grad_ns
        if part is None:
            return None
        return self._once(("input", speed), lambda: self.forward(speed) + _scaled(part, speed))

    def link(self, stage: int, home: Sequence[int]) -> Link:
        """Return the link into a stage."""
        if stage == 0 or home[stage - 1] == home[stage]:
            return NO_LINK
        return self.grid.link(home[stage - 1], home[stage])

    def hop(self, link: Link) -> Table:
        """Return a micro-batch's way into the stage and its gradient's way back."""
        return self._once(("hop", link), lambda: _hop(self.levels[0], link))

    def occupied(self, link: Link) -> Table:
        """Return how long one micro-batch occupies the link, in the direction in which it is longer."""
        return self._once(("occupied", link), lambda: _occupied(self.levels[0], link))

    def pace(self, level: int, speed: float, link: Link) -> Table:
        """Return the least time between two micro-batches."""
        key = ("pace", level, speed, link)
        return self._once(key, lambda: np.maximum(self.compute(level, speed), self.occupied(link)))

    def memory(
        self,
        level: int,
        stage: int,
        stages: int,
        largest: Sequence[tuple[StageHolding, bool]],
        micro_batches: int,
        part: Part = WHOLE,
    ) -> Table:
        """Return what a rank needs for each interval as ``stage`` alone, for begins and ends in ``part``.

        Parameters
        ----------
        largest : sequence of (StageHolding, bool)
            What the stage holds at its largest moments, and whether it computes then.
        """
        times, memory = _part_of(self.levels[level].times, part), _part_of(self.levels[level].memory, part)
        needed = None
        for held, in_hand in largest:
            size = holding_bytes(memory, times, held, stage=stage, stages=stages, micro_batches=micro_batches)
            if in_hand:
                size = size + (memory.forward_peak if held.forward else memory.peak)
            needed = size if needed is None else np.maximum(needed, size)
        assert needed is not None
        return memory.state + needed

    def least_extra(
        self, stage: int, moments: Sequence[Moment], needed: Table, device: Device, part: Part
    ) -> tuple[Table, Mask]:
        """Return a time under that of any recompute that makes an interval fit, and whether one might.

        A layer that recomputes lowers what is needed by at most what it no longer saves, for each micro-batch in
        flight and the one in hand. So no choice frees more a nanosecond than the best layer does.
        """
        sized = self.levels[0].sized
        copies = 1 + max(moment.held[moment.stages.index(stage)].in_flight for moment in moments)
        freed, rate = [], 0.0
        for cost in sized.costs:
            freed.append(freed_bytes(cost) if can_recompute(cost) else 0)
            rate = max(rate, freed[-1] / max(1, cost.recompute_ns or 0))
        lacking = np.maximum(0, needed - (device.memory_bytes or 0))
        extra = np.floor(lacking / (max(rate, 1e-9) * copies * device.speed)).astype(np.int64)
        return extra, lacking <= copies * between(prefix(freed))[part]

    def tail(self, rank: int) -> Table:
        """Return the sum of gradients over the replicas of a rank, and its optimizer."""
        speed, link, times = self.grid.devices[rank].speed, self.grid.replica_link(rank), self.levels[0].times
        replicas = self.grid.replicas

        def made() -> Table:
            optimizer = _scaled(times.optimizer_ns, speed)
            if replicas == 1:
                return optimizer
            return optimizer + _all_reduce(times.gradient_bytes, replicas, link)

        return self._once(("tail", speed, link), made)


def _part_of(tables: Tables, part: Part) -> Tables:
    """Return the same tables, of begins and ends in ``part`` only."""
    if part == WHOLE:
        return tables
    whole = {field.name: getattr(tables, field.name) for field in fields(tables)}
    cut: dict[str, Any] = {name: None if table is None else table[part] for name, table in whole.items()}
    return replace(tables, **cut)


def _part_with(mask: Mask) -> Part:
    """Return the smallest part with every entry that is set."""
    begins, ends = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return slice(begins[0], begins[-1] + 1), slice(ends[0], ends[-1] + 1)


def _with_part(table: Entries, part: Part, inside: Entries) -> Entries:
    """Return ``table`` with ``inside`` in the place of ``part``."""
    filled = table.copy()
    filled[part] = inside
    return filled


def largest_alone(moments: Sequence[Moment], stage: int) -> list[tuple[StageHolding, bool]]:
    """Return the largest of what one stage holds, and whether it computes then, over all moments of its rank."""
    found = {_of_stage(moment, stage) for moment in moments}

    def covers(more: tuple[StageHolding, bool], less: tuple[StageHolding, bool]) -> bool:
        (*most, ahead), (*least, behind) = astuple(more[0]), astuple(less[0])
        return more != less and more[1] >= less[1] and ahead <= behind and all(map(int.__ge__, most, least))

    return sorted(one for one in found if not any(covers(other, one) for other in found))


def _of_stage(moment: Moment, stage: int) -> tuple[StageHolding, bool]:
    """Return what a stage holds at a moment, and whether it computes then; if not, it climbs no higher than ahead."""
    held, in_hand = moment.held[moment.stages.index(stage)], moment.in_hand == stage
    return replace_fields(held, forward=moment.forward or not in_hand), in_hand


def first_level(shape: tuple[int, ...]) -> Table:
    """Return a table that says the first level of every interval, in no memory."""
    return np.broadcast_to(np.int64(0), shape)


def stage_tables(
    costs: CostTables, stage: int, home: Sequence[int], moments: Sequence[Moment], micro_batches: int, legal: Mask
) -> StageTables:
    """Return the tables of a stage: of every interval, the fastest level that fits on its rank by itself."""
    device, link = costs.grid.devices[home[stage]], costs.link(stage, home)
    compute = plain = costs.compute(0, device.speed)
    level, least, fits, possible = first_level(compute.shape), compute, legal, legal
    if device.memory_bytes is not None and legal.any():
        part = _part_with(legal)
        inside, own, here = legal[part], compute[part], np.zeros(legal[part].shape, dtype=np.int64)
        largest = largest_alone(moments, stage)
        needed = costs.memory(0, stage, len(home), largest, micro_batches, part)
        fit = inside & (needed <= device.memory_bytes)
        may, quickest = fit, own
        if len(costs.levels) > 1:
            extra, may = costs.least_extra(stage, moments, needed, device, part)
            may, quickest = may & inside, own + np.where(fit, 0, extra)
        for number in range(1, len(costs.levels)):
            other = costs.compute(number, device.speed)[part]
            held = costs.memory(number, stage, len(home), largest, micro_batches, part)
            better = inside & (held <= device.memory_bytes) & (~fit | (other < own))
            own, here, fit = np.where(better, other, own), np.where(better, number, here), fit | better
        if costs.complete:
            quickest, may = own, fit
        fits, possible = _with_part(np.zeros_like(legal), part, fit), _with_part(np.zeros_like(legal), part, may)
        if len(costs.levels) > 1:
            compute, least = _with_part(plain, part, own), _with_part(plain, part, quickest)
            level = _with_part(level, part, here)
    inputs = costs.inputs(device.speed)
    return StageTables(
        level=level,
        forward_ns=costs.forward(device.speed),
        compute_ns=compute,
        least_ns=least,
        input_ns=None if inputs is None else inputs + (least - plain),
        hop_ns=costs.hop(link) if stage else np.zeros_like(compute),
        pace_ns=costs.pace(0, device.speed, link) if compute is plain else np.maximum(compute, costs.occupied(link)),
        tail_ns=costs.tail(home[stage]),
        allowed=fits,
        possible=possible,
        in_flight=1 + max(moment.held[moment.stages.index(stage)].in_flight for moment in moments),
    )


def freed_bytes(cost: Cost) -> int:
    """Return the most that a micro-batch holds less of where the layer with this cost recomputes."""
    saved = max(0, cost.saved_bytes - (cost.saved_recompute_bytes or 0))
    transient = cost.transient_recompute_bytes
    return saved + (0 if transient is None else max(0, cost.transient_bytes - transient))


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


def _all_reduce(size_bytes: Table, ranks: int, link: Link) -> Table:
    """Return `costs.time.all_reduce_ns` of every entry, rounded down, so that it is never above it."""
    piece = -(-size_bytes // ranks)
    transmit = piece / link.bytes_per_s * 1e9 if link.bytes_per_s else np.zeros(piece.shape)
    return 2 * (ranks - 1) * ((link.latency_ns or 0) + np.floor(transmit).astype(np.int64))


def _scaled(table: Table, speed: float) -> Table:
    # Rounded up as in `costs.stages.scaled`: sums of stages then never fall under the scaled sum of their layers.
    return table if speed == 1.0 else np.ceil(table / speed).astype(np.int64)
