"""How step and memory change with micro-batch size and schedule, as curves."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from autopipe.documents.plan import Plan
from autopipe.planner.trade_offs import TradeOff
from autopipe.reporting.page.charts import Curve, Point, curves
from autopipe.units import MILLISECOND, byte_scale, format_bytes, format_time

SIZES = "samples in a micro-batch"


class Curves(NamedTuple):
    """The drawing of the step, that of the memory where it is known, and what the points are."""

    step: Markup
    memory: Markup | None
    remark: str


def trade_off_curves(plan: Plan, points: Sequence[TradeOff]) -> Curves | None:
    """Return the curves through ``points``, or else through the plan's alternatives; None where there is one point."""
    if len(points) > 1:
        return Curves(
            _step_curves(plan, points),
            _memory_curves(plan, points),
            "The ring is the plan. Each other point is the plan with this one thing changed, its stages as they are; "
            "a hollow point does not fit into the memory.",
        )
    searched = _searched(plan)
    if len(searched) < 2:
        return None
    return Curves(
        _step_curves(plan, searched), None, "The ring is the plan. Other points were searched on the same devices."
    )


def _searched(plan: Plan) -> list[TradeOff]:
    """Return the plan and its solved alternatives on the same devices, the fastest of each schedule and size."""
    found = {(plan.schedule, plan.micro_batch_size): (plan.micro_batches, plan.step_ns)}
    for other in plan.alternatives:
        alike = (other.pipeline_size, other.data_parallel_size) == (plan.pipeline_size, plan.data_parallel_size)
        key = (other.schedule, other.micro_batch_size)
        if other.step_ns is not None and other.solved and alike:
            found[key] = min((other.micro_batches, other.step_ns), found.get(key, (0, 1 << 62)), key=lambda one: one[1])
    return [
        TradeOff(schedule=schedule, micro_batch_size=size, micro_batches=count, step_ns=step, peak_bytes=0, fits=True)
        for (schedule, size), (count, step) in found.items()
    ]


def _step_curves(plan: Plan, points: Sequence[TradeOff]) -> Markup:
    return curves(
        _by_schedule(points, lambda one: (one.step_ns / MILLISECOND, format_time(one.step_ns))),
        x_name=SIZES,
        y_name="step, ms",
        chosen=(plan.micro_batch_size, plan.step_ns / MILLISECOND),
    )


def _memory_curves(plan: Plan, points: Sequence[TradeOff]) -> Markup:
    limits = [rank.memory_limit_bytes for rank in plan.ranks if rank.memory_limit_bytes is not None]
    most = max(one.peak_bytes for one in points)
    scale = byte_scale(most)
    # A limit far above all points would press them flat.
    limit = min(limits) / scale.size if limits and min(limits) <= 2 * most else None
    return curves(
        _by_schedule(points, lambda one: (one.peak_bytes / scale.size, format_bytes(one.peak_bytes))),
        x_name=SIZES,
        y_name=f"fullest rank, {scale.unit}",
        chosen=(plan.micro_batch_size, max(rank.peak_bytes for rank in plan.ranks) / scale.size),
        limit=limit,
    )


def _by_schedule(points: Sequence[TradeOff], figure: Callable[[TradeOff], tuple[float, str]]) -> list[Curve]:
    rows: dict[str, list[Point]] = {}
    for one in sorted(points, key=lambda one: one.micro_batch_size):
        y, text = figure(one)
        said = f"{one.schedule}, {one.micro_batches} of {one.micro_batch_size}: {text}"
        said += "" if one.fits else ", does not fit"
        rows.setdefault(one.schedule, []).append(Point(one.micro_batch_size, y, said, one.fits))
    return [Curve(schedule, tuple(row)) for schedule, row in rows.items()]
