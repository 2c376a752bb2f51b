"""Where a runtime cannot express a plan, the best plan that it can express takes its place."""

from collections.abc import Collection

import msgspec

from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError, MismatchError
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.units import format_time


def expressible(
    plan: Plan,
    profile: Profile | None,
    *,
    runtime: str,
    forbidden: Collection[int],
    schedules: tuple[str, ...],
) -> tuple[Plan, tuple[str, ...]]:
    """Return ``plan``, or the best plan with legal cuts and a schedule that ``runtime`` has, and what changed.

    Parameters
    ----------
    profile : Profile, optional
        The one that ``plan`` was made from; needed where the plan has to change.
    forbidden : collection of int
        Positions at which the runtime cannot cut.
    schedules : tuple of str
        The runtime's schedules, the one to fall back to first.

    Raises
    ------
    InputError
        If the plan has to change and there is no profile.
    MismatchError
        If the profile is not the plan's.
    """
    bad = [stage.begin for stage in plan.stages if stage.begin in set(forbidden)]
    lacks_schedule = plan.schedule not in schedules
    if not bad and not lacks_schedule:
        return plan, ()
    where = f"cuts inside a block, before {plan.stages[_stage_at(plan, bad[0])].layers[0]}" if bad else ""
    what = f"runs {plan.schedule}" if lacks_schedule else ""
    difference = " and ".join(part for part in (where, what) if part)
    if profile is None:
        raise InputError(
            f"the plan {difference}, and {runtime} cannot: give the plan's --profile to have the best plan that it can "
            "express, or export --to torch."
        )
    if profile.fingerprint != plan.profile_fingerprint:
        raise MismatchError(
            f"the profile of {profile.model} is not the one that the plan for {plan.model} was made from "
            f"({profile.fingerprint[:12]} and {plan.profile_fingerprint[:12]}): give that one, or plan again."
        )
    from autopipe.planner import Request
    from autopipe.planner import plan as make_plan

    cuts = tuple(sorted({*profile.forbidden_cuts, *forbidden}))
    found = make_plan(
        msgspec.structs.replace(profile, forbidden_cuts=cuts),
        _cluster_of(plan),
        Request(
            batch_size=plan.batch_size,
            micro_batch_size=plan.micro_batch_size,
            schedule=schedules[0] if lacks_schedule else plan.schedule,
            stages=plan.pipeline_size,
            recompute=_recompute_of(plan),
        ),
    )
    slower = (found.step_ns - plan.step_ns) / plan.step_ns
    return found, (
        f"The plan {difference}, and {runtime} cannot: this is the best plan that it can express, predicted at "
        f"{format_time(found.step_ns)} against {format_time(plan.step_ns)} ({slower:+.1%}).",
    )


def _recompute_of(plan: Plan) -> str:
    """Return the layers that recompute in the plan, as a request names them."""
    return ",".join(name for stage in plan.stages for name in stage.recompute) or "none"


def _stage_at(plan: Plan, begin: int) -> int:
    return next(index for index, stage in enumerate(plan.stages) if stage.begin == begin)


def _cluster_of(plan: Plan) -> Cluster:
    """Return the devices that the plan was made for, as far as it says."""
    devices = tuple(Device(memory_bytes=rank.memory_limit_bytes) for rank in plan.ranks)
    link = Link(latency_ns=plan.link_latency_ns, bytes_per_s=plan.link_bytes_per_s)
    return Cluster(devices=devices, intra_node=link, inter_node=link)
