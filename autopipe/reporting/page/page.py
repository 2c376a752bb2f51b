"""The page is made from a plan, and as far as they are there a measured timeline and the profile."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autopipe.documents.arguments import typed
from autopipe.documents.plan import Alternative, Plan
from autopipe.documents.profile import Profile, Source
from autopipe.documents.timeline import Timeline
from autopipe.planner.trade_offs import TradeOff
from autopipe.reporting.colours import PALETTE, stage_colour
from autopipe.reporting.page.charts import Part, bar
from autopipe.reporting.page.gaps import CAUSES
from autopipe.reporting.page.idle_rows import idle_rows
from autopipe.reporting.page.layer_map import layer_map
from autopipe.reporting.page.tracks import track
from autopipe.reporting.page.trade_off_curves import trade_off_curves
from autopipe.reporting.page.verdict import proof, verdict
from autopipe.reporting.plan_table import layer_span, schedule_words, slower
from autopipe.reporting.profile_table import rows as profile_rows
from autopipe.units import byte_scale, format_bytes, format_share, format_time, time_scale

RUNNERS_UP = 20
PATTERNS = (
    ("waiting", 6, "M0 6L6 0"),
    ("imbalance", 6, "M0 0L6 6"),
    ("link", 4, "M0 2H4"),
    ("overhead", 4, "M2 0V4"),
)


@typed
def report_page(
    plan: Plan,
    predicted: Timeline,
    *,
    measured: Timeline | None = None,
    profile: Profile | None = None,
    trade_offs: Sequence[TradeOff] = (),
) -> str:
    """Return the report as one HTML document that needs nothing else: no file, no network.

    Parameters
    ----------
    plan : Plan
    predicted : Timeline
        The plan's, from the simulator.
    measured : Timeline, optional
        A step of the same plan as it ran.
    profile : Profile, optional
        For the heaviest layers.
    trade_offs : sequence of TradeOff, optional
        The plan under other schedules and micro-batch sizes, from `planner.trade_offs`.

    Notes
    -----
    All text is escaped: names of models and layers are shown as they are, whatever they hold.
    """
    environment = Environment(
        loader=PackageLoader("autopipe.reporting", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    timelines = [("predicted", predicted)] + ([] if measured is None else [("measured", measured)])
    tracks = [track(name, timeline) for name, timeline in timelines]
    text: str = environment.get_template("page.html.jinja").render(
        style=Markup(_source(environment, "page.css")),
        script=Markup(_source(environment, "page.js")),
        data=Markup(_json({"palette": PALETTE, "causes": CAUSES, "tracks": tracks})),
        plan=plan,
        verdict=verdict(plan, measured),
        proof=proof(plan),
        facts=_facts(plan, measured),
        stages=_stages(plan),
        ranks=_ranks(plan),
        curves=trade_off_curves(plan, trade_offs),
        idle=[idle_rows(name, timeline) for name, timeline in timelines],
        runners_up=_runners_up(plan),
        heaviest=None if profile is None else _heaviest(profile, plan),
        layers=None if plan.graph is None else layer_map(plan, plan.graph),
        patterns=PATTERNS,
        palette=PALETTE,
        legend_colour=stage_colour(0),
    )
    return text


class Fact(NamedTuple):
    """A figure with its name."""

    name: str
    value: str


class StageRow(NamedTuple):
    """What the page says of one stage."""

    number: int
    colour: str
    rank: int
    layers: int
    span: str
    forward: str
    backward: str
    state: str
    activations: str
    bar: Markup


class RankRow(NamedTuple):
    """What the page says of one rank."""

    number: int
    stages: str
    in_flight: int
    busy: str
    peak: str
    limit: str
    used: str
    bar: Markup


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _json(value: Any) -> str:
    """Return JSON that cannot end the script element that holds it."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _facts(plan: Plan, measured: Timeline | None) -> tuple[Fact, ...]:
    samples = plan.batch_size * plan.data_parallel_size
    facts = [
        Fact("step, predicted", format_time(plan.step_ns)),
        Fact("samples/s", f"{samples * 1e9 / plan.step_ns:.1f}" if plan.step_ns else "-"),
        Fact("bubble ratio", format_share(plan.bubble_ratio)),
        Fact("ranks x replicas", f"{plan.pipeline_size} x {plan.data_parallel_size}"),
        Fact("stages", f"{len(plan.stages)}"),
        Fact("micro-batches", f"{plan.micro_batches} of {plan.micro_batch_size}"),
        Fact("schedule", schedule_words(plan)),
    ]
    if plan.source is not Source.MEASURED:
        facts.append(Fact("times", f"{plan.source}, not measured"))
    if measured is not None:
        facts.insert(1, Fact("step, measured", format_time(measured.step_ns)))
    return tuple(facts)


def _stages(plan: Plan) -> tuple[StageRow, ...]:
    time = time_scale(max(max(stage.forward_ns, stage.backward_ns) for stage in plan.stages))
    size = byte_scale(max(max(stage.state_bytes, stage.activation_bytes) for stage in plan.stages))
    slowest = max(stage.forward_ns + stage.backward_ns for stage in plan.stages)
    return tuple(
        StageRow(
            number=index,
            colour=stage_colour(index),
            rank=stage.rank,
            layers=stage.end - stage.begin,
            span=layer_span(stage),
            forward=f"{time.format(stage.forward_ns)} {time.unit}",
            backward=f"{time.format(stage.backward_ns)} {time.unit}",
            state=f"{size.format(stage.state_bytes)} {size.unit}",
            activations=f"{size.format(stage.activation_bytes)} {size.unit}",
            bar=bar(
                (
                    Part(stage.forward_ns, "forward", f"forward {format_time(stage.forward_ns)}"),
                    Part(stage.backward_ns, "backward", f"backward {format_time(stage.backward_ns)}"),
                ),
                slowest,
                colour=stage_colour(index),
            ),
        )
        for index, stage in enumerate(plan.stages)
    )


def _ranks(plan: Plan) -> tuple[RankRow, ...]:
    limits = [rank.memory_limit_bytes or 0 for rank in plan.ranks]
    whole = max(*limits, *(rank.peak_bytes for rank in plan.ranks), 1)
    rows = []
    for index, rank in enumerate(plan.ranks):
        held = [stage for stage in plan.stages if stage.rank == index]
        state = min(sum(stage.state_bytes for stage in held), rank.peak_bytes)
        limit = rank.memory_limit_bytes
        rows.append(
            RankRow(
                number=index,
                stages=", ".join(str(number) for number, stage in enumerate(plan.stages) if stage.rank == index),
                in_flight=rank.in_flight,
                busy=format_share(rank.busy_ns / plan.step_ns if plan.step_ns else None),
                peak=format_bytes(rank.peak_bytes),
                limit=format_bytes(limit),
                used=format_share(None if not limit else rank.peak_bytes / limit),
                bar=bar(
                    (
                        Part(state, "state", f"parameters, gradients, optimizer, buffers {format_bytes(state)}"),
                        Part(
                            rank.peak_bytes - state,
                            "activations",
                            f"activations and what travels {format_bytes(rank.peak_bytes - state)}",
                        ),
                    ),
                    whole,
                    limit=limit,
                ),
            )
        )
    return tuple(rows)


def _runners_up(plan: Plan) -> Sequence[tuple[str, ...]]:
    """Return the alternatives, solved ones by their step, then those with a bound alone, then those that do not fit."""
    ordered = sorted(plan.alternatives, key=lambda other: (other.step_ns is None, not other.solved, other.step_ns or 0))
    rows = [
        (
            f"{other.pipeline_size} x {other.data_parallel_size}",
            f"{other.micro_batches} of {other.micro_batch_size}",
            schedule_words(other),
            *_step_of(other, plan),
            other.reason,
        )
        for other in ordered
    ]
    return list(dict.fromkeys(rows))[:RUNNERS_UP]


def _step_of(other: Alternative, plan: Plan) -> tuple[str, str]:
    if other.step_ns is None:
        return "does not fit", "-"
    return f"{'' if other.solved else 'at least '}{format_time(other.step_ns)}", slower(other, plan)


def _heaviest(profile: Profile, plan: Plan) -> Sequence[tuple[str, ...]]:
    """Return the heaviest layers at the largest profiled size up to the plan's micro-batch."""
    sizes = [size for size in profile.micro_batches if size <= plan.micro_batch_size] or [profile.micro_batches[0]]
    rows = profile_rows(profile, profile.micro_batches.index(sizes[-1]))
    total = rows[-1].forward_ns + rows[-1].backward_ns
    return [
        (
            row.name,
            format_time(row.forward_ns),
            format_time(row.backward_ns),
            format_share((row.forward_ns + row.backward_ns) / total if total else None),
            format_bytes(row.state_bytes),
            format_bytes(row.saved_bytes),
        )
        for row in rows
    ]
