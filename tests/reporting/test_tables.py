"""Every table that a command prints: golden text, columns that add up as printed, 80 columns, ASCII alone."""

import re
from collections.abc import Callable
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group, RenderableType

from autopipe.documents.checkpoint import Checkpoint
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Lane, Span, Timeline
from autopipe.planner import simulate_plan
from autopipe.reporting.checkpoint_table import Row, checkpoint_report
from autopipe.reporting.columns import figures_that_add_up
from autopipe.reporting.comparison import compare, comparison_table
from autopipe.reporting.graph_table import graph_report
from autopipe.reporting.idle_table import idle_table, path_sentence
from autopipe.reporting.plan_table import plan_report, stage_table
from autopipe.reporting.profile_comparison import profile_comparison
from autopipe.reporting.profile_table import profile_report
from autopipe.reporting.text import as_text
from autopipe.reporting.timeline_comparison import compare_timelines
from autopipe.units import MIB, Scale
from tests.conftest import Golden
from tests.reporting import samples
from tests.reporting.graphs import graph
from tests.reporting.page.plans import plan_of


def checkpoint() -> Group:
    document = Checkpoint(
        step=7,
        steps=9,
        seed=0,
        model="GPT",
        graph_fingerprint="0123456789abcdef",
        bounds=(0, 3, 5),
        stage_ranks=(0, 1),
        schedule="1f1b",
        micro_batches=4,
        replicas=1,
        aliases={"head.weight": "tokens.weight"},
        unread=(),
        optimizers=("AdamW",),
        torch_version="2.13.0",
    )
    rows = [
        Row("tokens.weight", (1001, 64), "float32", 1001 * 256, 2 * 1001 * 256 + 4),
        Row("blocks.0.weight", (64, 333), "float32", 64 * 333 * 4, 8 * 64 * 333 + 4),
        Row("scale", (), "float32", 4, 0),
    ]
    return checkpoint_report(document, rows)


def grouped() -> Profile:
    profile = samples.profile()
    layers = tuple(
        msgspec.structs.replace(layer, group=group)
        for layer, group in zip(profile.layers, (0, 1, 1, 1, 2), strict=True)
    )
    return msgspec.structs.replace(profile, layers=layers)


def quicker() -> Profile:
    profile = samples.profile()
    layers = tuple(
        msgspec.structs.replace(
            layer,
            costs=tuple(msgspec.structs.replace(cost, forward_ns=cost.forward_ns // 3) for cost in layer.costs),
        )
        for layer in profile.layers[:-1]
    )
    return msgspec.structs.replace(profile, layers=layers, device="h100", graph_fingerprint="fedcba9876543210")


def every_cause() -> Timeline:
    """Two ranks whose step has time of every cause."""
    ms = 1_000_000

    def span(lane: Lane, label: str, start: int, end: int) -> Span:
        return Span(lane=lane, label=label, start_ns=start * ms, end_ns=end * ms)

    timeline = samples.timeline(2, 2)
    first = (
        span(Lane.COMPUTE, "F0.0", 0, 10),
        span(Lane.SEND, "send a0>1.0", 10, 11),
        span(Lane.COMPUTE, "F0.1", 11, 21),
        span(Lane.WAIT, "receive g1>0.0", 22, 40),
        span(Lane.COMPUTE, "B0.0", 41, 61),
        span(Lane.COMPUTE, "B0.1", 61, 81),
        span(Lane.OPTIMIZER, "optimizer", 81, 85),
    )
    second = (
        span(Lane.COMPUTE, "F1.0", 12, 22),
        span(Lane.COMPUTE, "B1.0", 22, 32),
        span(Lane.SEND, "send g1>0.0", 32, 33),
        span(Lane.WAIT, "receive a0>1.1", 33, 43),
        span(Lane.COMPUTE, "F1.1", 44, 54),
        span(Lane.COMPUTE, "B1.1", 54, 64),
        span(Lane.OPTIMIZER, "optimizer", 84, 88),
    )
    ranks = tuple(
        msgspec.structs.replace(rank, spans=spans) for rank, spans in zip(timeline.ranks, (first, second), strict=True)
    )
    return msgspec.structs.replace(timeline, ranks=ranks, step_ns=90 * ms, source="measured")


def named_alternatives() -> RenderableType:
    plan = samples.plan()
    lost, other = plan.alternatives
    left = msgspec.structs.replace(other, schedule="interleaved", virtual_stages=4, solved=False, reason="not solved")
    deep = msgspec.structs.replace(other, depth=1, step_ns=380_000_000)
    return plan_report(
        msgspec.structs.replace(
            plan,
            alternatives=(lost, other, left, left, deep),
            explanation=("One more device in the pipeline: 12.1 % shorter.", "Links of twice the speed: no change."),
        )
    )


TABLES: dict[str, Callable[[], RenderableType]] = {
    "checkpoint": checkpoint,
    "comparison": lambda: comparison_table(compare(samples.plan(), samples.timeline(source="measured"))),
    "graph": lambda: graph_report(graph()),
    "idle": lambda: Group(idle_table(every_cause()), path_sentence(every_cause())),
    "idle_predicted": lambda: idle_table(simulate_plan(plan_of(3, 6))),
    "plan_alternatives": named_alternatives,
    "profile_comparison": lambda: profile_comparison(samples.profile(), quicker()),
    "profile_groups": lambda: profile_report(grouped()),
    "timeline_comparison": lambda: comparison_table(
        compare_timelines(samples.timeline(2, 4), samples.timeline(2, 4, source="measured"))
    ),
}


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("comparison", "graph")])
def test_a_table_looks_as_it_should(name: str, golden: Golden) -> None:
    golden.check(f"{name}.txt", as_text(TABLES[name]()))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_80_columns_and_needs_no_more_than_ascii(name: str) -> None:
    text = as_text(TABLES[name]())
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()


def columns(text: str, *, title: str, last: str = "total") -> list[tuple[Decimal, ...]]:
    """The columns of figures with a point in the table below ``title``, the row that starts with ``last`` behind."""
    lines = text.split(title, 1)[1].split("\n\n")[0].splitlines()
    (total,) = [line for line in lines if re.match(rf"\s*(\d+ )?{last} ", line)]
    tokens = {line: re.findall(r"(?<!\S)\d+\.\d+(?= |$)", line) for line in lines}
    rows = [tuple(map(Decimal, found)) for line, found in tokens.items() if len(found) == len(tokens[total])]
    return list(zip(*rows, strict=True))


def check_sums(found: list[tuple[Decimal, ...]]) -> None:
    assert found
    for *parts, total in found:
        assert sum(parts) == total


def test_the_columns_of_a_profile_add_up_as_printed() -> None:
    report = as_text(profile_report(samples.profile(), heaviest=3))
    check_sums(columns(report, title="Layers, heaviest first")[:-1])  # of the transient memory the largest counts


def test_the_columns_of_a_plan_add_up_as_printed() -> None:
    check_sums(columns(as_text(plan_report(samples.plan())), title="Stages, for one micro-batch"))


def test_the_columns_of_a_checkpoint_add_up_as_printed() -> None:
    text = as_text(checkpoint()).replace(" -\n", " 0.00\n")
    check_sums(columns(text, title="Tensors"))


@pytest.mark.parametrize("timeline", [every_cause(), simulate_plan(plan_of(3, 6))], ids=["measured", "predicted"])
def test_the_causes_of_every_rank_add_up_to_the_whole_step_as_printed(timeline: Timeline) -> None:
    rows = [line.split() for line in as_text(idle_table(timeline)).splitlines() if re.match(r"\d", line)]
    assert len(rows) == len(timeline.ranks)
    for _, *shares in rows:
        assert sum(map(Decimal, shares)) == 100


def test_the_state_of_all_layers_adds_up_to_what_the_headline_says() -> None:
    report = as_text(graph_report(graph()))
    state = sum(Decimal(match[1]) for match in re.finditer(r"^ *\d\S* .*? (\d+\.\d\d) +(?:\d|$)", report, re.MULTILINE))
    assert f"{state} MiB of parameters and buffers" in report


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=30), st.sampled_from([1000, 1024**2, 10**6, 1024**3]))
def test_printed_figures_always_add_up_and_none_is_off_by_a_hundredth(parts: list[int], size: int) -> None:
    *printed, total = map(Decimal, figures_that_add_up(tuple(parts), Scale("unit", size)))
    assert sum(printed) == total
    assert abs(float(total) - sum(parts) / size) < 0.00501
    assert all(abs(float(figure) - part / size) < 0.01001 for figure, part in zip(printed, parts, strict=True))


def test_no_figure_is_cut_however_long_the_names_and_large_the_numbers() -> None:
    plan = samples.plan()
    stages = tuple(
        msgspec.structs.replace(
            one,
            layers=(f"model.decoder.layers.{index}.self_attention.query_key_value", "model.decoder.final_layer_norm"),
            forward_ns=98_765 * 10**9,
            backward_ns=12_345_678 * 10**6,
            optimizer_ns=1_234 * 10**9,
            state_bytes=(1 << 40) + 5,
            activation_bytes=123_456 * MIB,
        )
        for index, one in enumerate(plan.stages)
    )
    text = as_text(stage_table(msgspec.structs.replace(plan, stages=stages)))
    for figure in ("98765.00", "12345.68", "1234.00", "1024.00", "120.56", "120.57", "241.13", "197530.00", "2048.00"):
        assert figure in text
    assert "…" not in text
    widest = as_text(idle_table(every_cause()))
    assert "…" not in widest
    assert max(map(len, widest.splitlines())) <= 80


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/x]", ":smile:", "[link=file:///etc]x", "a\x1b[31mb"])
def test_a_name_that_looks_like_markup_is_printed_as_it_is(name: str) -> None:
    profile = samples.profile()
    layers = tuple(msgspec.structs.replace(layer, name=name) for layer in profile.layers)
    assert name.replace("\x1b", "\\x1b") in as_text(profile_report(msgspec.structs.replace(profile, layers=layers)))
