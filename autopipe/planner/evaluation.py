"""A split that somebody gives is scored as if it had been planned."""

from collections.abc import Sequence
from itertools import pairwise

from autopipe.costs.size import at_size
from autopipe.costs.stages import Intervals
from autopipe.costs.validity import check_profile
from autopipe.documents.plan import Certificate, Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, check_cluster
from autopipe.planner.bounds import frontier
from autopipe.planner.explain import binding_sentence
from autopipe.planner.problem import make_problem, objective_ns, without_limits
from autopipe.planner.request import check_magnitude, micro_batch_sizes, with_profiled
from autopipe.planner.score import PREFERENCE, score, write_plan
from autopipe.planner.step_bound import tightest
from autopipe.units import format_bytes


def evaluate(
    profile: Profile,
    cluster: Cluster,
    bounds: Sequence[int],
    *,
    batch_size: int,
    micro_batch_size: int,
    schedule: str = "1f1b",
) -> Plan:
    """Return the plan with the stages at ``bounds`` = (0, b1, ..., L), scored by the simulator.

    It need not be good, nor fit: the certificate's gap is against the bound of all splits under the same
    choices, its status is ``heuristic``, its engine ``given``, and ``binding`` says which rank lacks memory.

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
    stages = _stages(profile, cluster, bounds)
    if schedule not in PREFERENCE:
        raise InputError(f"schedule {schedule!r} cannot be planned: choose from {', '.join(PREFERENCE)}.")
    (size,) = micro_batch_sizes(profile, batch_size, micro_batch_size)
    check_magnitude(profile, batch_size)
    intervals = Intervals.of(at_size(profile, size))
    problem = without_limits(
        make_problem(intervals, cluster, schedule=schedule, stages=stages, micro_batches=-(-batch_size // size))
    )
    candidate = score(problem, bounds)
    known, lowest = frontier(problem), tightest(problem)
    assert known is not None
    assert lowest is not None
    step_bound = min(lowest[0], candidate.step_ns)
    objective = objective_ns(problem, bounds)
    bound = (problem.micro_batches - 1) * known.best.pace_ns + known.best.total_ns
    certificate = Certificate(
        status="heuristic",
        engine="given",
        objective_ns=objective,
        objective_bound_ns=bound,
        solver_gap=(objective - bound) / objective if objective else 0.0,
        step_bound_ns=step_bound,
        gap=(candidate.step_ns - step_bound) / step_bound if step_bound else 0.0,
    )
    over = [
        f"Rank {rank} needs {format_bytes(peak)} and has {format_bytes(limit)}: this split does not fit."
        for rank, (peak, limit) in enumerate(zip(candidate.run.peak_bytes, problem.limits, strict=True))
        if limit is not None and peak > limit
    ]
    binding = " ".join([*over, binding_sentence(candidate, ())])
    return write_plan(candidate, batch_size=batch_size, certificate=certificate, binding=binding)


def _stages(profile: Profile, cluster: Cluster, bounds: tuple[int, ...]) -> int:
    """Return how many stages ``bounds`` cut, after checking that they do."""
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
    if stages > len(cluster.devices):
        raise InputError(f"{stages} stages cannot be put on {len(cluster.devices)} devices, one each: merge some.")
    return stages
