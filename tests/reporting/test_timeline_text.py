"""The text timeline: one row a rank, scaled to the width, boxes as long as their actions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.documents.timeline import Lane, RankTimeline, Span, Timeline
from autopipe.reporting.timeline_text import busy_share, timeline_text
from autopipe.units import MILLISECOND
from tests.conftest import Golden
from tests.reporting import samples


def rows(timeline: Timeline, width: int) -> list[str]:
    lines = timeline_text(timeline, width=width).plain.splitlines()
    return lines[1 : 1 + len(timeline.ranks)]


def test_two_ranks_look_as_in_the_docstring() -> None:
    # 2 micro-batches: a step of 9 ms; 36 columns for it, so a forward has 4 and a backward 8.
    assert rows(samples.timeline(2, 2), width=36 + 8 + 9) == [
        "rank 0 |F0--F1--        B0======    B1======| 66.7 %",
        "rank 1 |    F0--B0======F1--B1======        | 66.7 %",
    ]


def test_four_ranks_look_as_they_should(golden: Golden) -> None:
    golden.check("timeline.txt", timeline_text(samples.timeline(4, 8)).plain + "\n")


def test_many_micro_batches_look_as_they_should(golden: Golden) -> None:
    golden.check("timeline_dense.txt", timeline_text(samples.timeline(4, 32)).plain + "\n")


def test_stage_numbers_are_shown_where_a_rank_has_several() -> None:
    spans = tuple(
        Span(lane=Lane.COMPUTE, label=label, start_ns=index * MILLISECOND, end_ns=(index + 1) * MILLISECOND)
        for index, label in enumerate(("F0.0", "F2.0"))
    )
    rank = RankTimeline(rank=0, spans=spans, peak_in_flight=2)
    timeline = Timeline(
        source="simulated", schedule="interleaved", micro_batches=1, step_ns=2 * MILLISECOND, ranks=(rank,)
    )
    assert rows(timeline, width=8 + 9 + 16) == ["rank 0 |F0.0----F2.0----| 100.0 %"]


def test_the_optimizer_is_drawn_and_counts_as_busy() -> None:
    half = MILLISECOND // 2
    spans = (
        Span(lane=Lane.COMPUTE, label="F0.0", start_ns=0, end_ns=half),
        Span(lane=Lane.OPTIMIZER, label="optimizer", start_ns=half, end_ns=2 * half),
    )
    rank = RankTimeline(rank=0, spans=spans, peak_in_flight=1)
    timeline = Timeline(source="measured", schedule="1f1b", micro_batches=1, step_ns=2 * half, ranks=(rank,))
    assert rows(timeline, width=8 + 9 + 10) == ["rank 0 |F0---ooooo| 100.0 %"]


def test_a_longer_axis_leaves_room_on_the_right() -> None:
    text = timeline_text(samples.timeline(2, 2), width=17 + 36, axis_ns=18 * MILLISECOND).plain
    assert text.splitlines()[1].startswith("rank 0 |F0F1    B0==  B1==                  |")


@given(st.integers(1, 6), st.integers(1, 12), st.integers(40, 200))
def test_every_row_is_as_wide_as_asked_and_busy_in_proportion(stages: int, micro_batches: int, width: int) -> None:
    timeline = samples.timeline(stages, micro_batches)
    lines = timeline_text(timeline, width=width).plain.splitlines()
    bars = [line[: line.rindex("|") + 1] for line in lines[1 : 1 + stages]]
    assert {len(bar) for bar in bars} == {width - len(" 100.0 %")}
    for bar, rank in zip(bars, timeline.ranks, strict=True):
        body = bar[len("rank 0 |") : -1]
        share = busy_share(rank, timeline.step_ns)
        boxes = 2 * micro_batches
        assert sum(cell != " " for cell in body) == pytest.approx(len(body) * share, abs=boxes)


def test_a_timeline_in_which_nothing_ran_is_drawn_empty() -> None:
    rank = RankTimeline(rank=0, spans=(), peak_in_flight=0)
    timeline = Timeline(source="simulated", schedule="1f1b", micro_batches=1, step_ns=0, ranks=(rank,))
    assert rows(timeline, width=27) == ["rank 0 |          | -"]
