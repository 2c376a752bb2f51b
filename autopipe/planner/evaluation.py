"""A split that somebody gives is scored as if it had been planned."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from autopipe.costs.validity import check_profile
from autopipe.documents.arguments import typed
from autopipe.documents.plan import Certificate, Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, check_cluster
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.bounds import frontier
from autopipe.planner.cells import Tables
from autopipe.planner.explain import binding_sentence
from autopipe.planner.kind import Kind
from autopipe.planner.problem import Problem, make_problem, objective_ns, without_limits
from autopipe.planner.request import Request, check_magnitude, check_request, micro_batch_sizes, with_profiled
from autopipe.planner.score import recosted, simulated
from autopipe.planner.step_bound import tightest
from autopipe.planner.writing import write_plan
from autopipe.units import format_bytes


@typed
def evaluate(
    profile: Profile,
    cluster: Cluster,
    bounds: Sequence[int],
    *,
    batch_size: int,
    micro_batch_size: int,
    schedule: str = "1f1b",
    replicas: int = 1,
    virtual: int = 1,
    depth: int = 0,
    recompute: Sequence[int] = (),
    device_order: Sequence[int] = (),
) -> Plan:
    """Return the plan with the stages at ``bounds`` = (0, b1, ..., L), scored by the simulator.

    It need not be good, nor fit: the certificate's gap is against the bound of all splits under the same
    choices, its status is ``heuristic``, its engine ``given``, and ``binding`` says which rank lacks memory.

    Parameters
    ----------
    batch_size : int
        Over all replicas.
    recompute : sequence of int
        The layers that recompute.

    Raises
    ------
    InputError
        If the bounds are no split of the layers, cut where no cut is legal, or have more stages than there
        are devices.
    DocumentError
        If the profile cannot be used.
    """
    check_profile(profile)
    check_cluster(cluster)
    cluster = with_profiled(cluster, profile)
    bounds = tuple(bounds)
    request = Request(batch_size=batch_size, schedule=schedule, virtual=virtual, recompute="none")
    check_request(request)
    ranks = _ranks(profile, cluster, bounds, virtual, replicas)
    (size,) = micro_batch_sizes(profile, batch_size // replicas, micro_batch_size)
    check_magnitude(profile, batch_size)
    problem = without_limits(
        make_problem(
            Tables(profile, request).base(size),
            DeviceGrid.of(cluster, ranks, replicas, device_order),
            kind=Kind(schedule=schedule, virtual=virtual, depth=depth),
            micro_batches=-(-batch_size // (size * replicas)),
        )
    )
    candidate = simulated(recosted(problem, bounds, frozenset(recompute), problem.kind))
    certificate = _certificate(problem, bounds, candidate.step_ns)
    limits = tuple(device.memory_bytes for device in problem.grid.devices)
    over = [
        f"Rank {rank} needs {format_bytes(peak)} and has {format_bytes(limit)}: this split does not fit."
        for rank, (peak, limit) in enumerate(zip(candidate.run.peak_bytes, limits, strict=True))
        if limit is not None and peak > limit
    ]
    binding = " ".join([*over, binding_sentence(candidate, ())])
    made = write_plan(candidate, batch_size=batch_size // replicas, certificate=certificate, binding=binding)
    numbered = zip(made.ranks, limits, strict=True)
    return msgspec.structs.replace(
        made, ranks=tuple(msgspec.structs.replace(rank, memory_limit_bytes=limit) for rank, limit in numbered)
    )


def _certificate(problem: Problem, bounds: tuple[int, ...], step_ns: int) -> Certificate:
    """Return what is known of the best split of ``problem``, which has no limits, beside the given one."""
    known, lowest = frontier(problem), tightest(problem)
    assert known is not None
    assert lowest is not None
    step_bound = min(lowest.step_ns, step_ns)
    objective = objective_ns(problem, bounds)
    bound = problem.weight * known.best.pace_ns + known.best.total_ns
    return Certificate(
        status="heuristic",
        engine="given",
        objective_ns=objective,
        objective_bound_ns=bound,
        solver_gap=(objective - bound) / objective if objective else 0.0,
        step_bound_ns=step_bound,
        gap=(step_ns - step_bound) / step_bound if step_bound else 0.0,
    )


def _ranks(profile: Profile, cluster: Cluster, bounds: tuple[int, ...], virtual: int, replicas: int) -> int:
    """Return on how many ranks the stages that ``bounds`` cut are, after checking that they can be."""
    layers, stages = len(profile.layers), len(bounds) - 1
    ascending = all(low < high for low, high in pairwise(bounds))
    if stages < 1 or bounds[0] != 0 or bounds[-1] != layers or not ascending:
        raise InputError(
            f"bounds {bounds} do not cut {layers} layers: begin with 0, end with {layers}, and ascend, so that every "
            "stage holds at least one layer."
        )
    illegal = sorted(set(bounds) & set(profile.forbidden_cuts))
    if illegal:
        raise InputError(
            f"no stage may begin at layer {illegal[0]} ({profile.layers[illegal[0]].name}): move that cut."
        )
    ranks, rest = divmod(stages, virtual)
    if rest:
        raise InputError(f"{stages} stages cannot be put on ranks with {virtual} stages each: cut a multiple of it.")
    if ranks * replicas > len(cluster.devices):
        raise InputError(
            f"{ranks} stages cannot be put on {len(cluster.devices)} devices, one each: merge some."
            if replicas == virtual == 1
            else f"{ranks} ranks of {replicas} replicas need more than {len(cluster.devices)} devices: merge some."
        )
    return ranks
