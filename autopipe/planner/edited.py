"""A plan that somebody edited by hand is scored anew, and the planner says what its own would gain."""

from autopipe.documents.arguments import typed
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError, MismatchError
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner.any_order import plan as make_plan
from autopipe.planner.evaluation import evaluate
from autopipe.planner.request import Request
from autopipe.planner.wishes import names_matching
from autopipe.units import format_share, format_time


@typed
def rescored(edited: Plan, profile: Profile) -> tuple[Plan, str]:
    """Return a plan with its boundaries, schedule and recompute, all figures anew, and what the optimum would gain.

    Only the choices of ``edited`` are read: the end of each stage, micro-batch size, schedule, depth, virtual
    stages, replicas, recompute, and the memory and links that it was made for.

    Raises
    ------
    MismatchError
        If the profile is of another model.
    InputError
        If its stages are no split of the layers, or its schedule is spelt out.
    """
    check_same_model(edited, profile)
    if edited.actions:
        raise InputError(
            f"the plan spells out its schedule {edited.schedule!r}, which was fitted to other stages: write the name "
            "of another schedule, such as 1f1b, and no actions."
        )
    names = [layer.name for layer in profile.layers]
    replicas = edited.data_parallel_size
    cluster = cluster_of(edited)
    batch = edited.batch_size * replicas
    scored = evaluate(
        profile,
        cluster,
        (0, *(stage.end for stage in edited.stages)),
        batch_size=batch,
        micro_batch_size=edited.micro_batch_size,
        schedule=edited.schedule,
        replicas=replicas,
        virtual=edited.virtual_stages,
        depth=edited.depth,
        recompute=[names_matching(name, names)[0] for stage in edited.stages for name in stage.recompute],
    )
    best = make_plan(profile, cluster, Request(batch_size=batch, replicas=replicas))
    gain = 1 - best.step_ns / scored.step_ns if scored.step_ns else 0.0
    if gain <= 0:
        return scored, f"No plan that was found is faster: the planner's own takes {format_time(best.step_ns)}."
    ends = ", ".join(str(stage.end) for stage in best.stages[:-1])
    return scored, (
        f"The planner's own takes {format_time(best.step_ns)}, {format_share(gain)} less: {best.schedule}, "
        f"micro-batches of {best.micro_batch_size}, cuts before layers {ends or 'none'}."
    )


def check_same_model(plan: Plan, profile: Profile) -> None:
    """Return if ``plan`` and ``profile`` are of one model.

    Raises
    ------
    MismatchError
        If they are not.
    """
    if plan.model != profile.model or plan.graph_fingerprint != profile.graph_fingerprint:
        raise MismatchError(
            f"the plan is for {plan.model!r} and the profile of {profile.model!r}: give the profile that it was made "
            "from."
        )


def cluster_of(plan: Plan) -> Cluster:
    """Return the devices that the plan was made for, as far as it says."""
    devices = tuple(
        Device(memory_bytes=rank.memory_limit_bytes) for rank in plan.ranks for _ in range(plan.data_parallel_size)
    )
    link = Link(latency_ns=plan.link_latency_ns, bytes_per_s=plan.link_bytes_per_s)
    return Cluster(devices=devices, intra_node=link, inter_node=link)
