"""A plan's own stages under other micro-batch sizes and schedules: what each choice costs in time and in memory."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from autopipe.costs.validity import check_profile
from autopipe.documents.arguments import typed
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.cells import Tables
from autopipe.planner.edited import check_same_model, cluster_of
from autopipe.planner.kind import Kind, kinds
from autopipe.planner.problem import make_problem, without_limits
from autopipe.planner.request import Request, check_magnitude, micro_batch_sizes, with_profiled
from autopipe.planner.score import Costed, recosted, simulated
from autopipe.planner.wishes import names_matching
from autopipe.schedules.named import placement

MOST_ENTRIES = 300_000
MOST_ACTIONS = 20_000
MOST_SIZES = 8


class TradeOff(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: its step, the bytes of its fullest rank, and whether every rank keeps within its limit."""

    schedule: str
    micro_batch_size: int
    micro_batches: int
    step_ns: int
    peak_bytes: int
    fits: bool


@typed
def trade_offs(plan: Plan, profile: Profile) -> tuple[TradeOff, ...]:
    """Return what the step comes to where ``plan`` has another schedule or micro-batch size, and nothing else differs.

    Returns
    -------
    tuple of TradeOff
        By schedule, then size; () for large plans, where it would take long, and for a plan whose costs follow from
        more than it says (unequal devices or links, another order of the layers).

    Raises
    ------
    MismatchError
        If the profile is of another model.
    InputError
        If its figures contradict each other, or add up to too much.
    """
    check_same_model(plan, profile)
    check_profile(profile)
    check_magnitude(profile, plan.batch_size)
    if len(plan.stages) * len(profile.layers) ** 2 > MOST_ENTRIES:
        return ()
    can_split = all(stage.input_grad_ns is not None for stage in plan.stages)
    known = kinds(plan.pipeline_size, len(plan.stages), schedule=None, virtual=None, can_split=can_split)
    others = [
        replace(kind, depth=plan.depth if kind.schedule == plan.schedule else 0)
        for kind in known
        if kind.virtual == plan.virtual_stages
    ]
    cost_under = _costing(plan, profile)
    own = [kind for kind in others if _placement(kind, plan) == plan.stage_ranks]
    if not own or not _is_as_planned(plan, cost_under(own[0], plan.micro_batch_size)):
        return ()
    sizes = micro_batch_sizes(profile, plan.batch_size, None)
    sizes = tuple(sorted({*sizes[:: -(-len(sizes) // MOST_SIZES)], plan.micro_batch_size}))
    points = []
    for kind in others:
        for size in sizes:
            count = -(-plan.batch_size // size)
            if 3 * len(plan.stages) * count <= MOST_ACTIONS:
                points.append(_point(cost_under(kind, size), plan))
    return tuple(points)


def _costing(plan: Plan, profile: Profile) -> Callable[[Kind, int], Costed]:
    """Return a function of schedule and micro-batch size that costs the plan's stages under them."""
    cluster = with_profiled(cluster_of(plan), profile)
    grid = DeviceGrid.of(cluster, plan.pipeline_size, plan.data_parallel_size, ())
    tables = Tables(profile, Request(batch_size=plan.batch_size * plan.data_parallel_size, recompute="none"))
    names = [layer.name for layer in profile.layers]
    recompute = frozenset(names_matching(name, names)[0] for stage in plan.stages for name in stage.recompute)
    bounds = (0, *(stage.end for stage in plan.stages))

    def costed(kind: Kind, size: int) -> Costed:
        count = -(-plan.batch_size // size)
        problem = make_problem(tables.base(size), grid, kind=kind, micro_batches=count)
        return recosted(without_limits(problem), bounds, recompute, kind)

    return costed


def _placement(kind: Kind, plan: Plan) -> tuple[int, ...]:
    return placement(kind.schedule, ranks=plan.pipeline_size, virtual=kind.virtual)


def _is_as_planned(plan: Plan, costed: Costed) -> bool:
    """Whether stages and edges cost what the plan says they do."""
    stages = ((cost.forward_ns, cost.backward_ns, cost.state_bytes, cost.replica_ns) for cost in costed.stages)
    planned = ((one.forward_ns, one.backward_ns, one.state_bytes, one.replica_ns) for one in plan.stages)
    links = ((cost.forward_bytes, cost.link.latency_ns or 0, cost.link.bytes_per_s) for cost in costed.edges)
    edges = ((one.forward_bytes, one.latency_ns or 0, one.bytes_per_s) for one in plan.edges)
    return tuple(stages) == tuple(planned) and tuple(links) == tuple(edges)


def _point(costed: Costed, plan: Plan) -> TradeOff:
    result = simulated(costed).run
    pairs = zip(result.peak_bytes, plan.ranks, strict=True)
    return TradeOff(
        schedule=costed.kind.schedule,
        micro_batch_size=costed.problem.micro_batch_size,
        micro_batches=costed.problem.micro_batches,
        step_ns=result.step_ns,
        peak_bytes=max(result.peak_bytes),
        fits=all(rank.memory_limit_bytes is None or peak <= rank.memory_limit_bytes for peak, rank in pairs),
    )
