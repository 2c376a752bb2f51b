"""Drift is how far what a pipeline measures while it trains has moved from its plan, and what a new plan would win."""

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from autopipe.costs.planned import planned_edges, planned_stages
from autopipe.costs.stages import StageCost
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Lane, Timeline
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner import Request
from autopipe.planner import plan as make_plan
from autopipe.schedules.planned import planned_schedule
from autopipe.simulator.conditions import IDEAL
from autopipe.simulator.events import run

THRESHOLD = 0.15
_ACTION = re.compile(r"([FBIW])(\d+)\.\d+")
_ALIKE = 0.1


class RankDrift(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's computing beside the plan's: measured over planned, of its forwards, of its backwards and of all."""

    rank: int
    replica: int
    forward: float
    backward: float
    total: float


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found over some steps.

    Parameters
    ----------
    ranks : tuple of RankDrift
        By rank, then by replica.
    slow : tuple of int
        The ranks that fell behind the fastest by more than the threshold, in some replica.
    sentences : tuple of str
        Which rank is slower than planned by how much, and what that speaks for.
    step_ns : int
        The step that the simulator gives the plan with the measured times.
    """

    steps: int
    ranks: tuple[RankDrift, ...]
    slow: tuple[int, ...]
    sentences: tuple[str, ...]
    step_ns: int

    def __str__(self) -> str:
        return "\n".join(self.sentences)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for the measured speeds; ``gain`` is how much shorter its step is predicted to be, as a share."""

    plan: Plan
    gain: float


def find_drift(plan: Plan, timelines: Sequence[Timeline], *, threshold: float = THRESHOLD) -> DriftReport:
    """Return how the measured ``timelines`` of some steps stand beside their plan.

    Ranks are compared with the fastest: what all of them share (a clock, a profile that reads low) is no drift of one.

    Parameters
    ----------
    timelines : sequence of Timeline
        Of one step each, with a row for each rank of every replica, as the plan counts them, or of one replica.

    Raises
    ------
    InputError
        If there is no timeline, or one is of other stages.
    """
    if not timelines:
        raise InputError("no step was measured, so nothing can have drifted: observe a few steps first.")
    costs, measured = planned_stages(plan), _measured(timelines, plan.pipeline_size)
    replicas = max(len(timelines[0].ranks) // plan.pipeline_size, 1)
    stages = sorted({stage for stage, _ in measured})
    if stages != list(range(len(costs))):
        raise InputError(f"the timelines show stages {stages}, and the plan has {len(costs)} stages.")
    ranks = tuple(_of_rank(r, k, plan, measured) for r in range(plan.pipeline_size) for k in range(replicas))
    least = min(rank.total for rank in ranks)
    slow = [rank for rank in ranks if rank.total > least * (1 + threshold)]
    sentences = [_sentence(rank, least, plan, names_replica=replicas > 1) for rank in slow]
    if not slow:
        most = max(rank.total for rank in ranks)
        sentences.append(f"every rank keeps to the plan: the slowest is {_percent(most / least)}.")
    slowest = [
        max((measured[stage, k] for k in range(replicas)), key=lambda times: sum(times.values())) for stage in stages
    ]
    found = _as_measured(costs, slowest)
    conditions = plan.conditions or IDEAL
    now = run(planned_schedule(plan), found, planned_edges(plan), conditions=conditions, with_spans=False).step_ns
    return DriftReport(
        steps=len(timelines),
        ranks=ranks,
        slow=tuple(sorted({rank.rank for rank in slow})),
        sentences=tuple(sentences),
        step_ns=now,
    )


def offer(report: DriftReport, plan: Plan, profile: Profile, *, time_limit_s: float = 10.0) -> Offer:
    """Return a plan for the speeds that ``report`` has measured, with the same devices, micro-batches and schedule.

    Parameters
    ----------
    profile : Profile
        What ``plan`` was made from.
    """
    totals = {(rank.rank, rank.replica): rank.total for rank in report.ranks}
    order = plan.device_order or tuple(range(plan.pipeline_size * plan.data_parallel_size))
    devices: list[Device] = [Device()] * len(order)
    for place, process in enumerate(order):
        rank, replica = divmod(place, plan.data_parallel_size)
        speed = 1.0 / totals.get((rank, replica), totals[rank, 0])
        limit = plan.ranks[rank].memory_limit_bytes
        devices[process] = Device(name=f"rank {rank}", memory_bytes=limit, speed=speed)
    link = Link(latency_ns=plan.link_latency_ns or None, bytes_per_s=plan.link_bytes_per_s)
    made = make_plan(
        profile,
        Cluster(devices=tuple(devices), intra_node=link, inter_node=link),
        Request(
            batch_size=plan.batch_size * plan.data_parallel_size,
            micro_batch_size=plan.micro_batch_size,
            stages=plan.pipeline_size,
            replicas=plan.data_parallel_size,
            schedule=None if plan.actions else plan.schedule,
            virtual=plan.virtual_stages,
            time_limit_s=time_limit_s,
        ),
    )
    return Offer(plan=made, gain=1.0 - made.step_ns / report.step_ns)


def _measured(timelines: Sequence[Timeline], size: int) -> dict[tuple[int, int], dict[str, int]]:
    """Return, per stage and replica, the median duration of each kind of action."""
    found: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for timeline in timelines:
        replicas = max(len(timeline.ranks) // size, 1)
        for number, row in enumerate(timeline.ranks):
            for span in row.spans:
                match = _ACTION.fullmatch(span.label)
                if span.lane is Lane.COMPUTE and match is not None:
                    found[int(match[2]), number % replicas][match[1]].append(span.end_ns - span.start_ns)
    return {
        place: {kind: round(statistics.median(times)) for kind, times in kinds.items()}
        for place, kinds in found.items()
    }


def _of_rank(rank: int, replica: int, plan: Plan, measured: dict[tuple[int, int], dict[str, int]]) -> RankDrift:
    """Return the sums over the rank's stages, measured over planned."""
    mine = [index for index, stage in enumerate(plan.stages) if stage.rank == rank]
    forward, backward = (sum(_part(measured[index, replica], kinds) for index in mine) for kinds in ("F", "BIW"))
    planned_forward = sum(plan.stages[index].forward_ns for index in mine)
    planned_backward = sum(plan.stages[index].backward_ns for index in mine)
    return RankDrift(
        rank=rank,
        replica=replica,
        forward=forward / max(planned_forward, 1),
        backward=backward / max(planned_backward, 1),
        total=(forward + backward) / max(planned_forward + planned_backward, 1),
    )


def _part(times: dict[str, int], kinds: str) -> int:
    return sum(times.get(kind, 0) for kind in kinds)


def _as_measured(costs: Sequence[StageCost], measured: Sequence[dict[str, int]]) -> tuple[StageCost, ...]:
    return tuple(
        msgspec.structs.replace(
            cost,
            forward_ns=_part(measured[stage], "F"),
            backward_ns=_part(measured[stage], "BIW"),
            input_grad_ns=measured[stage].get("I", cost.input_grad_ns),
            weight_grad_ns=measured[stage].get("W", cost.weight_grad_ns),
        )
        for stage, cost in enumerate(costs)
    )


def _sentence(rank: RankDrift, least: float, plan: Plan, *, names_replica: bool) -> str:
    stages = [str(index) for index, stage in enumerate(plan.stages) if stage.rank == rank.rank]
    held = f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"
    held += f", replica {rank.replica}" if names_replica else ""
    ratio = rank.total / least
    if abs(rank.forward - rank.backward) <= _ALIKE * rank.total:
        cause = (
            f"its forwards and backwards alike, so its device computes at {100 / ratio:.0f} % of its planned speed: "
            "look for other programs on it, heat, or another clock"
        )
    else:
        part = "forward" if rank.forward > rank.backward else "backward"
        cause = f"mostly its {part}, so its layers do other work than when they were profiled: profile them again"
    return f"rank {rank.rank} ({held}) is {_percent(ratio)}: {cause}."


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f} % slower than planned, beside the fastest rank"
