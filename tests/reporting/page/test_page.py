import json
import re

import msgspec

from autopipe.documents.plan import Alternative, Plan
from autopipe.documents.profile import Source
from autopipe.documents.timeline import Lane, RankTimeline, Span
from autopipe.hardware.cluster import Cluster
from autopipe.planner import evaluate, simulate_plan, trade_offs
from autopipe.reporting.page import report_page
from autopipe.reporting.page.gaps import CAUSES, gap_causes
from autopipe.reporting.page.idle_rows import idle_rows
from autopipe.reporting.page.tracks import KINDS, OPTIMIZER, track
from autopipe.schedules.action import Action
from autopipe.units import MILLISECOND
from tests import profiles
from tests.profiles import cost, layer
from tests.reporting.page.plans import plan_of
from tests.reporting.samples import profile

HOSTILE = (
    "<script>alert(1)</script>",
    "a\" onmouseover='x' b",
    "two\nlines\r\nand a tab\t",
    "</script><b>&amp;",
    "\u202etxt.exe \u05d0\u05d1\u05d2",
    "long" * 2_500,
    "\ud83d\ude80".encode("utf-16", "surrogatepass").decode("utf-16"),
)


def hostile(plan: Plan) -> Plan:
    """The plan with names of layers and model that would be code, were they not text."""
    stages = tuple(
        msgspec.structs.replace(stage, layers=(HOSTILE[index % len(HOSTILE)], "b"))
        for index, stage in enumerate(plan.stages)
    )
    assert plan.graph is not None
    layers = tuple(
        msgspec.structs.replace(layer, name=HOSTILE[index % len(HOSTILE)], kind=HOSTILE[0])
        for index, layer in enumerate(plan.graph.layers)
    )
    lost = tuple(
        Alternative(
            pipeline_size=plan.pipeline_size,
            micro_batch_size=size,
            micro_batches=1,
            schedule=HOSTILE[0],
            step_ns=plan.step_ns + size,
            reason=HOSTILE[3],
        )
        for size in (1, 2)
    )
    return msgspec.structs.replace(
        plan,
        model=HOSTILE[0],
        binding=HOSTILE[1],
        stages=stages,
        alternatives=lost,
        graph=msgspec.structs.replace(plan.graph, layers=layers),
    )


def test_a_track_holds_every_action_of_the_timeline() -> None:
    timeline = simulate_plan(plan_of(3, 4))
    data = track("predicted", timeline)
    for flat, rank in zip(data["ranks"], timeline.ranks, strict=True):
        at, found = 0, []
        for kind, stage, micro_batch, gap, length, _ in zip(*(flat[i:-1:6] for i in range(6)), strict=True):
            at += gap
            found.append((kind, stage, micro_batch, at * data["tick_ns"]))
            at += length
        expected = []
        for span in rank.spans:
            if span.lane == "compute":
                action = Action.parse(span.label)
                expected.append((KINDS.index(action.op), action.stage, action.micro_batch))
            elif span.lane == "optimizer":
                expected.append((OPTIMIZER, 0, 0))
        assert [entry[:3] for entry in found] == expected
        starts = [span.start_ns for span in rank.spans if span.lane in ("compute", "optimizer")]
        assert all(abs(a - b[3]) <= data["tick_ns"] for a, b in zip(starts, found, strict=True))


def test_a_gap_is_put_down_to_what_took_most_of_it() -> None:
    wait = Span(lane=Lane.WAIT, label="receive a0>1.0", start_ns=10, end_ns=40)
    spans = (
        Span(lane=Lane.COMPUTE, label="F1.0", start_ns=5, end_ns=10),
        wait,
        Span(lane=Lane.COMPUTE, label="B1.0", start_ns=40, end_ns=50),
        Span(lane=Lane.COMPUTE, label="F1.1", start_ns=55, end_ns=60),
        Span(lane=Lane.OPTIMIZER, label="optimizer", start_ns=80, end_ns=85),
    )
    rank = RankTimeline(rank=1, spans=spans, peak_in_flight=1)

    def named(departed: int, makespan: int) -> list[str]:
        return [CAUSES[cause] for cause in gap_causes(rank, {"a0>1.0": departed}, makespan, 85)]

    assert named(30, 75) == ["warm-up", "waiting", "overhead", "cool-down", "none"]
    assert named(15, 62) == ["warm-up", "link", "overhead", "tail", "none"]


def test_idle_shares_of_every_rank_add_up_to_the_step() -> None:
    table = idle_rows("predicted", simulate_plan(plan_of(4, 8)))
    assert [row.name for row in table.rows] == ["0", "1", "2", "3", "mean"]
    for row in table.rows:
        assert sum(round(10 * float(share.split()[0])) for share in row.shares) == 1000


def test_what_would_change_the_step_is_listed() -> None:
    plan = msgspec.structs.replace(plan_of(2, 4), explanation=("Links of twice the speed: <b>3.1 % shorter.",))
    page = report_page(plan, simulate_plan(plan))
    assert "<bdi>Links of twice the speed: &lt;b&gt;3.1 % shorter.</bdi>" in page
    assert "What would change the step" not in report_page(plan_of(2, 4), simulate_plan(plan))


def test_trade_offs_are_drawn_with_the_plan_in_a_ring_and_hollow_points_where_memory_lacks() -> None:
    sizes = (1, 2, 4)
    layers = [
        layer(f"layer{index}", [cost(size * MILLISECOND, saved_bytes=size * 100_000) for size in sizes])
        for index in range(4)
    ]
    profile = profiles.profile(layers, micro_batches=sizes, crossing_bytes=4096)
    cluster = Cluster.uniform(2, memory_bytes=1 << 20)
    plan = evaluate(profile, cluster, (0, 2, 4), batch_size=8, micro_batch_size=2)
    points = trade_offs(plan, profile)
    own = [one for one in points if (one.schedule, one.micro_batch_size) == (plan.schedule, 2)]
    assert [one.step_ns for one in own] == [plan.step_ns]
    assert {one.schedule for one in points} >= {"1f1b", "gpipe"}
    assert {one.fits for one in points} == {True, False}
    page = report_page(plan, simulate_plan(plan), trade_offs=points)
    assert page.count('class="chosen"') == 2
    assert page.count('class="mark hollow"') == 2 * sum(not one.fits for one in points)


def test_a_plan_with_bounds_alone_draws_no_curve_and_says_at_least() -> None:
    lost = Alternative(
        pipeline_size=2, micro_batch_size=2, micro_batches=2, schedule="gpipe", step_ns=7, solved=False, reason="left"
    )
    plan = msgspec.structs.replace(plan_of(2, 4), alternatives=(lost, lost))
    page = report_page(plan, simulate_plan(plan))
    assert 'class="chosen"' not in page
    assert page.count("at least 7 ns") == 1


def test_the_page_needs_no_other_file_and_no_network() -> None:
    page = report_page(plan_of(2, 4), simulate_plan(plan_of(2, 4)), profile=profile())
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "default-src 'none'" in page


def test_a_page_of_64_stages_and_512_micro_batches_is_under_5_mb() -> None:
    plan = plan_of(64, 512)
    assert len(report_page(plan, simulate_plan(plan))) < 5_000_000


def test_the_script_is_at_most_200_lines() -> None:
    page = report_page(plan_of(2, 2), simulate_plan(plan_of(2, 2)))
    script = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert len(script) == 1
    assert len(script[0].splitlines()) <= 200


def test_names_stay_text() -> None:
    plan = hostile(plan_of(8, 8))
    page = report_page(plan, simulate_plan(plan))
    assert page.count("<script") == 2
    assert "alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "onmouseover='x'" not in page


def test_what_the_page_draws_is_json() -> None:
    plan = hostile(plan_of(2, 2))
    page = report_page(plan, simulate_plan(plan))
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["tracks"][0]["step_ns"] == plan.step_ns


def test_a_plan_from_estimated_times_says_so_among_its_facts() -> None:
    plan = plan_of(2, 4)
    told = msgspec.structs.replace(plan, source=Source.ROOFLINE)
    assert "roofline, not measured" in report_page(told, simulate_plan(told))
    assert "not measured" not in report_page(plan, simulate_plan(plan))
