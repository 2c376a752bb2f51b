"""A plan as tables: stages, ranks against their memory, the proof in a sentence, and the plans that lost."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopipe.documents.plan import Alternative, Certificate, Plan, StagePlan
from autopipe.documents.profile import Source
from autopipe.reporting.colours import stage_colour
from autopipe.reporting.columns import (
    Names,
    add_figures,
    add_words,
    bytes_scale,
    figures_that_add_up,
    plain_table,
    times_scale,
)
from autopipe.units import SECOND, format_share, format_time

ALTERNATIVES = 8
LINKS = 2

_ORIGINS = {
    Source.ROOFLINE: "\nAll times are estimates by the roofline: none was measured.",
    Source.CALIBRATED: "\nAll times are estimates by the roofline, calibrated with a measured profile.",
}


def plan_report(plan: Plan, *, alternatives: int = ALTERNATIVES) -> Group:
    """Return everything about ``plan`` that a person asks first: choices, stages, ranks, proof, runners-up."""
    parts: list[RenderableType] = [
        headline(plan),
        "",
        stage_table(plan),
        "",
        rank_table(plan),
        "",
        certificate_sentence(plan.certificate),
    ]
    parts.append(Text(f"What binds: {plan.binding}"))
    if plan.edges:
        parts.append(link_sentence(plan))
    if plan.explanation:
        parts += ["", "What would change the step:", *(Text(f"  {sentence}") for sentence in plan.explanation)]
    if plan.alternatives:
        parts += ["", alternative_table(plan, most=alternatives)]
    return Group(*parts)


def headline(plan: Plan) -> Text:
    """Return the plan's choices and its predicted step in two sentences."""
    samples = plan.batch_size * plan.data_parallel_size
    replicas = "" if plan.data_parallel_size == 1 else f" x {plan.data_parallel_size} replicas"
    virtual = "" if plan.virtual_stages == 1 else f", {plan.virtual_stages} virtual stages a rank"
    depth = "" if plan.depth == 0 else f", depth {plan.depth}"
    rate = f"{samples * SECOND / plan.step_ns:.1f}" if plan.step_ns else "-"
    where = f"{_count(len(plan.stages), 'stage')} on {_count(plan.pipeline_size, 'rank')}"
    return Text(
        f"{plan.model}: {where}{replicas}{virtual}, "
        f"batch {plan.batch_size} in {_count(plan.micro_batches, 'micro-batch')} of {plan.micro_batch_size}, "
        f"schedule {plan.schedule}{depth}.\n"
        f"Predicted step {format_time(plan.step_ns)} ({rate} samples/s), "
        f"bubble ratio {format_share(plan.bubble_ratio)}."
        f"{_ORIGINS.get(plan.source, '')}"
    )


def stage_table(plan: Plan) -> Table:
    """Return one row a stage: its layers, its times for one micro-batch, its memory; and the totals."""
    table = plain_table(f"Stages, for one micro-batch{_mark(plan)}")
    stages = plan.stages
    forward, backward = tuple(s.forward_ns for s in stages), tuple(s.backward_ns for s in stages)
    optimizer = tuple(s.optimizer_ns for s in stages)
    state, activations = tuple(s.state_bytes for s in stages), tuple(s.activation_bytes for s in stages)
    time = times_scale((sum(forward), sum(backward), sum(optimizer)))
    size = bytes_scale((sum(state), sum(activations)))
    add_figures(table, "stage")
    add_figures(table, "rank")
    add_figures(table, "layers")
    add_words(table, "from ... to")
    for name in ("forward", "backward", "optimizer"):
        add_figures(table, name, time.unit)
    for name in ("state", "activations"):
        add_figures(table, name, size.unit)
    columns = (
        *(figures_that_add_up(column, time) for column in (forward, backward, optimizer)),
        *(figures_that_add_up(column, size) for column in (state, activations)),
    )
    for index, (stage, *figures) in enumerate(zip(stages, *(column[:-1] for column in columns), strict=True)):
        number = Text(str(index), style=stage_colour(index))
        table.add_row(number, str(stage.rank), str(stage.end - stage.begin), Names(layer_span(stage)), *figures)
    layers = str(sum(stage.end - stage.begin for stage in stages))
    table.add_row("", "", layers, "total", *(column[-1] for column in columns), style="bold")
    return table


def layer_span(stage: StagePlan) -> str:
    """Return the layers of ``stage`` as ``first ... last``, and how many of them recompute."""
    span = stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} ... {stage.layers[-1]}"
    return f"{span} ({len(stage.recompute)} recompute)" if stage.recompute else span


def schedule_words(choice: Plan | Alternative) -> str:
    """Return the name of a schedule with its virtual stages and depth, for example ``interleaved x 2``."""
    virtual = "" if choice.virtual_stages == 1 else f" x {choice.virtual_stages}"
    return f"{choice.schedule}{virtual}" + (f", depth {choice.depth}" if choice.depth else "")


def slower(alternative: Alternative, plan: Plan) -> str:
    """Return how much longer the step of ``alternative`` is, in per cent; ``-`` where that is not known."""
    if alternative.step_ns is None or not alternative.solved or not plan.step_ns:
        return "-"
    return f"{100 * (alternative.step_ns / plan.step_ns - 1):+.1f} %"


def rank_table(plan: Plan) -> Table:
    """Return one row a rank: what is in flight, how long it is busy in a step, its peak against its limit."""
    table = plain_table(f"Ranks, for one step{_mark(plan)}")
    time = times_scale(tuple(rank.busy_ns for rank in plan.ranks))
    size = bytes_scale(tuple(rank.peak_bytes for rank in plan.ranks))
    limits = bytes_scale(tuple(rank.memory_limit_bytes or 0 for rank in plan.ranks))
    add_figures(table, "rank")
    add_words(table, "stages")
    add_figures(table, "in-flight")
    add_figures(table, "busy", time.unit)
    add_figures(table, "busy share")
    add_figures(table, "peak memory", size.unit)
    add_figures(table, "limit", limits.unit)
    add_figures(table, "used")
    for index, rank in enumerate(plan.ranks):
        limit = rank.memory_limit_bytes
        owned = (str(stage) for stage, owner in enumerate(plan.stage_ranks) if owner == index)
        table.add_row(
            str(index),
            ", ".join(owned),
            str(rank.in_flight),
            time.format(rank.busy_ns),
            format_share(rank.busy_ns / plan.step_ns if plan.step_ns else None),
            size.format(rank.peak_bytes),
            limits.format(limit),
            format_share(None if not limit else rank.peak_bytes / limit),
        )
    return table


def certificate_sentence(certificate: Certificate) -> Text:
    """Return in words how far from the best the plan can be, and who says so."""
    gap = format_share(max(certificate.gap, 0.0))
    bound = f"no plan of the searched kind can be under {format_time(certificate.step_bound_ns)}"
    objective = f"{certificate.engine} by its own formula for the step: {format_time(certificate.objective_ns)}"
    known = f"bound {format_time(certificate.objective_bound_ns)}, gap {format_share(certificate.solver_gap)}"
    opening = {
        "optimal": (
            f"Two proofs. Of the stages: none are better, {objective}, {known}. Of the step as simulated, more "
            f"loosely: it is at most {gap} above the best, since {bound}, a bound that perhaps no plan reaches."
        ),
        "feasible": (
            f"Stopped at a limit of time or work with a plan at most {gap} above the lower bound: {bound}. "
            f"{objective}, {known}."
        ),
    }
    alone = f"Found without a solver: the step is at most {gap} above the best, since {bound}."
    return Text(opening.get(certificate.status, alone))


def link_sentence(plan: Plan) -> Text:
    """Return which links between stages the plan was made for, and how to give others."""
    links = sorted({(edge.bytes_per_s, edge.latency_ns) for edge in plan.edges}, key=str)
    if all(not speed and not latency for speed, latency in links):
        return Text(
            "Links between ranks: taken as free, since none was measured or given. Give --bandwidth and --latency-us, "
            "or profile under torchrun."
        )
    said = [_link_words(*link) for link in links[:LINKS]]
    more = f"; and {len(links) - LINKS} more" if len(links) > LINKS else ""
    return Text(
        f"Links between ranks, as measured or given (--bandwidth, --latency-us, --cluster): {'; '.join(said)}{more}."
    )


def _link_words(bytes_per_s: int | None, latency_ns: int | None) -> str:
    speed = f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s else "bandwidth taken as free"
    return f"{speed}, {f'latency {format_time(latency_ns)}' if latency_ns else 'latency taken as none'}"


def alternative_table(plan: Plan, *, most: int = ALTERNATIVES) -> Table:
    """Return the plans that were considered and lost: the fastest first, then those of which only a bound is known.

    Those that do not fit come last.
    """
    table = plain_table(f"Considered and not taken{_mark(plan)}")
    in_order = sorted(plan.alternatives, key=lambda a: (a.step_ns is None, not a.solved, a.step_ns or 0))
    time = times_scale(tuple(a.step_ns for a in in_order[:most] if a.step_ns is not None))
    rows = [
        (
            str(alternative.pipeline_size),
            f"{alternative.micro_batches} of {alternative.micro_batch_size}",
            schedule_words(alternative),
            time.format(alternative.step_ns),
            slower(alternative, plan),
            alternative.reason,
        )
        for alternative in in_order
    ]
    rows = list(dict.fromkeys(rows))
    add_figures(table, "ranks")
    add_words(table, "micro-batches")
    add_words(table, "schedule")
    add_figures(table, "step", time.unit)
    add_figures(table, "slower")
    add_words(table, "why")
    for row in rows[:most]:
        table.add_row(*row)
    if len(rows) > most:
        table.caption = f"and {len(rows) - most} more in the plan file"
        table.caption_justify = "left"
    return table


def _mark(plan: Plan) -> str:
    """Return what a table's title adds where times were not measured."""
    return f" ({plan.source})" if plan.source in _ORIGINS else ""


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"
