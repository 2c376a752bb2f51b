"""A quick answer without a plan: what a schedule comes to for given stage times and one hop."""

from collections.abc import Sequence

import msgspec

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.errors import InputError
from autopipe.hardware.cluster import Link
from autopipe.schedules.action import Schedule
from autopipe.schedules.comms import chain
from autopipe.simulator.conditions import IDEAL, Conditions
from autopipe.simulator.events import run
from autopipe.simulator.metrics import bubble_ratio, utilisation

MILLISECOND = 1_000_000
LONGEST_MS = 1e9


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one step comes to; ``peak_in_flight`` by rank, in stage-micro-batches."""

    schedule: str
    stages: int
    micro_batches: int
    step_ms: float
    bubble_ratio: float
    utilisation: float
    peak_in_flight: tuple[int, ...]


def quick(
    schedule: Schedule,
    times_ms: Sequence[tuple[float, float, float]],
    *,
    hop_ms: float = 0.0,
    conditions: Conditions = IDEAL,
) -> Answer:
    """Return what ``schedule`` comes to, without optimizer and memory.

    Parameters
    ----------
    times_ms : sequence of (F, I, W)
        In milliseconds, for every stage or once for all; a full backward takes I + W.
    hop_ms : float
        The time of every message between two ranks, in milliseconds.
    conditions : Conditions
        The executor's own costs; by default there are none.

    Raises
    ------
    InputError
        If a time is negative or no number, or there are not as many as stages.
    """
    if len(times_ms) not in (1, schedule.stages):
        raise InputError(
            f"{len(times_ms)} times for {schedule.stages} stages: give one for all, or one for each stage."
        )
    for number in (hop_ms, *(time for row in times_ms for time in row)):
        if not 0 <= number <= LONGEST_MS:
            raise InputError(
                f"a time of {number} ms cannot be simulated: give milliseconds from 0 to {LONGEST_MS:.0e}."
            )
    rows = list(times_ms) * (schedule.stages if len(times_ms) == 1 else 1)
    costs = []
    for row in rows:
        forward, input_grad, weight_grad = (round(time * MILLISECOND) for time in row)
        costs.append(
            StageCost(
                forward_ns=forward,
                backward_ns=input_grad + weight_grad,
                input_grad_ns=input_grad,
                weight_grad_ns=weight_grad,
            )
        )
    link = Link(latency_ns=round(hop_ms * MILLISECOND))
    edges = [EdgeCost(edge=edge, link=link) for edge in chain(schedule.stages)]
    result = run(schedule, costs, edges, conditions=conditions, with_spans=False)
    return Answer(
        schedule=schedule.name,
        stages=schedule.stages,
        micro_batches=schedule.micro_batches,
        step_ms=result.makespan_ns / MILLISECOND,
        bubble_ratio=bubble_ratio(result.busy_ns, result.makespan_ns),
        utilisation=utilisation(result.busy_ns, result.makespan_ns),
        peak_in_flight=result.peak_in_flight,
    )
