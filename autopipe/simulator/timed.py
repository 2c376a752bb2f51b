"""A schedule by its name, on given stages: its actions, and what its step comes to."""

from collections.abc import Sequence

import msgspec

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.errors import InputError
from autopipe.schedules.action import Schedule
from autopipe.schedules.named import FITTED, make
from autopipe.simulator.events import Run, run
from autopipe.simulator.fit import fit


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its simulated step: time, and by rank busy time, peak memory and peak in-flight."""

    schedule: Schedule
    run: Run


def timed(
    name: str,
    stages: Sequence[StageCost],
    edges: Sequence[EdgeCost],
    stage_ranks: Sequence[int],
    micro_batches: int,
    *,
    depth: int = 0,
    limits: Sequence[int] | None = None,
    memory_bytes: Sequence[int | None] | None = None,
) -> Timed:
    """Return the schedule called ``name`` on these stages, simulated.

    Parameters
    ----------
    name : str
        One of `schedules.named.NAMES`, or ``fitted``: the best that is found for these costs.
    stages, edges : sequences
        As for `simulator.events.run`.
    stage_ranks : sequence of int
        The rank of each stage; `schedules.named.placement` says which a named schedule has.
    limits, memory_bytes : optional
        As for `simulator.fit.fit`; a named schedule is what it is, and its peaks tell whether it fits.

    Raises
    ------
    InputError
        If the schedule has another placement, or splits backwards whose parts were not measured.
    InfeasibleError
        If ``name`` is ``fitted`` and no schedule keeps within limits and memory.
    """
    if name == FITTED:
        schedule = fit(stages, edges, stage_ranks, micro_batches, limits=limits, memory_bytes=memory_bytes)
    else:
        ranks = max(stage_ranks) + 1
        virtual = len(stages) // ranks
        schedule = make(name, stages=ranks, micro_batches=micro_batches, virtual=virtual, depth=depth)
        if schedule.stage_ranks != tuple(stage_ranks):
            raise InputError(
                f"schedule {name} puts its stages on ranks {schedule.stage_ranks}, and these are on "
                f"{tuple(stage_ranks)}: take schedules.named.placement, or the schedule 'fitted'."
            )
    return Timed(schedule=schedule, run=run(schedule, stages, edges, with_spans=False))
