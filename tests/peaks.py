"""The peak memory of ranks, metered without simulating time."""

from collections.abc import Sequence

from autopipe.costs.meter import MemoryMeter
from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.schedules.action import Schedule
from autopipe.schedules.comms import edges_by_stage, rank_steps


def rank_peaks(schedule: Schedule, stages: Sequence[StageCost], edges: Sequence[EdgeCost]) -> tuple[int, ...]:
    """Bytes, by rank."""
    near = edges_by_stage((cost.edge for cost in edges), schedule.stages)
    peaks = []
    for rank in range(schedule.ranks):
        meter = MemoryMeter(schedule, stages, edges, rank)
        for step in rank_steps(schedule, near, rank):
            meter.observe(step)
        peaks.append(meter.peak_bytes)
    return tuple(peaks)
