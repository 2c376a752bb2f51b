"""The best schedule for given stages is searched: templates and fitted ones, timed with the real, unequal costs."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.errors import InfeasibleError, InputError
from autopipe.schedules.action import Op, Schedule, peak_in_flight
from autopipe.schedules.fitted import StageTimes, fitted
from autopipe.schedules.named import NAMES, V_SHAPED, VIRTUAL, make
from autopipe.simulator.conditions import IDEAL, Conditions
from autopipe.simulator.events import run

SAMPLES = 4
NOISE = 0.1
HELD_SHARES = (0.5, 0.75, 1, 1.25, 1.5, 2, 3)
MOST_EXTRA = 8


def fit(
    stages: Sequence[StageCost],
    edges: Sequence[EdgeCost],
    stage_ranks: Sequence[int],
    micro_batches: int,
    *,
    limits: Sequence[int] | None = None,
    memory_bytes: Sequence[int | None] | None = None,
    conditions: Conditions = IDEAL,
) -> Schedule:
    """Return the schedule with the shortest simulated step among those that keep within limits and memory.

    Candidates are all named schedules with this placement, and what the list scheduler makes of the costs with
    several degrees of running ahead. Of those that are at least as fast as the best named one, that wins whose step
    is shortest on the mean over times perturbed by up to 10 %, so that a plan does not hang on a nanosecond; of
    equally short ones, that which holds least.

    Parameters
    ----------
    stages, edges : sequences
        As for `simulator.events.run`; schedules that split the backward are tried if every stage has both parts.
    stage_ranks : sequence of int
        The rank of each stage.
    limits : sequence of int, optional
        By rank: the most stage-micro-batches held at once.
    memory_bytes : sequence of int or None, optional
        By rank: the most bytes held at once, None where nothing is known.
    conditions : Conditions
        Those that candidates are simulated under.

    Raises
    ------
    InfeasibleError
        If no schedule keeps within limits and memory.

    Notes
    -----
    Deterministic. Every candidate is simulated once, and those still in question `SAMPLES` times more.
    """
    splits = all(cost.input_grad_ns is not None and cost.weight_grad_ns is not None for cost in stages)
    ranks = max(stage_ranks) + 1
    held = tuple(limits) if limits is not None else (micro_batches * len(stages),) * ranks
    memory = tuple(memory_bytes) if memory_bytes is not None else (None,) * ranks
    fitting = tuple(min(limit, _fitting(stages, stage_ranks, rank, memory[rank])) for rank, limit in enumerate(held))
    templates = [s for s in _templates(tuple(stage_ranks), micro_batches, splits=splits) if _keeps(s, held)]
    searched = list(_fitted(stages, edges, stage_ranks, micro_batches, fitting, splits=splits))
    named = _timed(templates, stages, edges, memory, conditions)
    timed = named + _timed(searched, stages, edges, memory, conditions)
    if not timed:
        raise InfeasibleError(
            f"no schedule of {len(stages)} stages holds at most {held} stage-micro-batches in {memory} bytes: one for "
            "each of a rank's stages is the least. Allow more memory, or smaller micro-batches."
        )
    bar = min((step for step, _ in named), default=min(step for step, _ in timed))
    rivals = [candidate for step, candidate in timed if step <= bar]
    if len(rivals) == 1:
        return rivals[0]
    noisy = [
        [_perturbed(cost, random.Random(f"{sample} {s}")) for s, cost in enumerate(stages)] for sample in range(SAMPLES)
    ]

    def preference(rival: Schedule) -> tuple[int, int]:
        held = sum(peak_in_flight(row) for row in rival.actions)
        return sum(_step(rival, costs, edges, conditions) for costs in (stages, *noisy)), held

    return min(rivals, key=preference)


def _templates(stage_ranks: tuple[int, ...], micro_batches: int, *, splits: bool) -> Iterator[Schedule]:
    ranks = max(stage_ranks) + 1
    virtual, rest = divmod(len(stage_ranks), ranks)
    for name in NAMES:
        if name == "forward" or rest or (virtual > 1 and name not in VIRTUAL) or (name in V_SHAPED and virtual != 2):
            continue
        schedule = make(name, stages=ranks, micro_batches=micro_batches, virtual=virtual)
        if schedule.stage_ranks == stage_ranks and (splits or not _is_split(schedule)):
            yield schedule


def _fitted(
    stages: Sequence[StageCost],
    edges: Sequence[EdgeCost],
    stage_ranks: Sequence[int],
    micro_batches: int,
    limits: Sequence[int],
    *,
    splits: bool,
) -> Iterator[Schedule]:
    ranks = max(stage_ranks) + 1
    virtual = -(-len(stage_ranks) // ranks)
    hops = {cost.edge.source: cost.link.transfer_ns(cost.forward_bytes) for cost in edges}
    times = [
        StageTimes(
            forward=cost.forward_ns,
            input_grad=cost.backward_ns if cost.input_grad_ns is None or not splits else cost.input_grad_ns,
            weight_grad=0 if cost.weight_grad_ns is None or not splits else cost.weight_grad_ns,
            hop=hops.get(stage, 0),
        )
        for stage, cost in enumerate(stages)
    ]
    orders = tuple(product((True, False), repeat=2)) if virtual > 1 else ((True, True),)
    for split in (False, True) if splits else (False,):
        for held, ahead in _degrees(virtual, ranks, limits):
            for deepest_first, reserve in orders:
                try:
                    yield fitted(
                        stage_ranks,
                        micro_batches,
                        times,
                        limits=held,
                        ahead=ahead,
                        split=split,
                        deepest_first=deepest_first,
                        reserve=reserve,
                    )
                except InputError:
                    continue  # this degree of running ahead gets stuck within the limits


def _degrees(
    virtual: int, ranks: int, limits: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...] | None]]:
    """Yield how far ranks may run ahead: by what they hold, or by 1F1B's warm-up and some more."""
    caps = {max(virtual, round(share * virtual * ranks)) for share in HELD_SHARES}
    yield from ((held, None) for held in sorted({tuple(min(limit, cap) for limit in limits) for cap in caps}))
    for extra in range(min(ranks, MOST_EXTRA) + 1):
        yield tuple(limits), tuple(virtual * (ranks - rank) + extra for rank in range(ranks))


def _fitting(stages: Sequence[StageCost], stage_ranks: Sequence[int], rank: int, memory_bytes: int | None) -> int:
    """Return about how many stage-micro-batches a rank's memory holds, at least one for each of its stages."""
    own = [stage for stage, home in zip(stages, stage_ranks, strict=True) if home == rank]
    saved = sum(stage.saved_bytes for stage in own)
    if memory_bytes is None or not saved:
        return 1 << 30
    free = memory_bytes - sum(stage.state_bytes for stage in own) - max(stage.working_bytes for stage in own)
    return max(len(own), free * len(own) // saved)


def _timed(
    candidates: Sequence[Schedule],
    stages: Sequence[StageCost],
    edges: Sequence[EdgeCost],
    memory: Sequence[int | None],
    conditions: Conditions,
) -> list[tuple[int, Schedule]]:
    """Return the step of every candidate that fits in memory."""
    found = []
    for candidate in candidates:
        result = run(candidate, stages, edges, conditions=conditions, with_spans=False)
        if all(limit is None or peak <= limit for peak, limit in zip(result.peak_bytes, memory, strict=True)):
            found.append((result.makespan_ns, candidate))
    return found


def _keeps(schedule: Schedule, limits: Sequence[int]) -> bool:
    return all(peak_in_flight(row) <= limit for row, limit in zip(schedule.actions, limits, strict=True))


def _is_split(schedule: Schedule) -> bool:
    return any(action.op is Op.INPUT_GRAD for action in schedule.actions[0])


def _step(schedule: Schedule, stages: Sequence[StageCost], edges: Sequence[EdgeCost], conditions: Conditions) -> int:
    return run(schedule, stages, edges, conditions=conditions, with_spans=False).makespan_ns


def _perturbed(cost: StageCost, chance: random.Random) -> StageCost:
    """Return the cost with each time changed by up to 10 %, the backward still the sum of its parts."""

    def shaken(time_ns: int) -> int:
        return round(time_ns * chance.uniform(1 - NOISE, 1 + NOISE))

    forward = shaken(cost.forward_ns)
    if cost.input_grad_ns is None or cost.weight_grad_ns is None:
        return msgspec.structs.replace(cost, forward_ns=forward, backward_ns=shaken(cost.backward_ns))
    parts = shaken(cost.input_grad_ns), shaken(cost.weight_grad_ns)
    return msgspec.structs.replace(
        cost, forward_ns=forward, backward_ns=sum(parts), input_grad_ns=parts[0], weight_grad_ns=parts[1]
    )
