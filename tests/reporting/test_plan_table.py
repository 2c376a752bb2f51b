"""The tables of a plan: golden text, columns that add up, and a sentence for every status."""

import re

import msgspec
import pytest

from autopipe.documents.plan import EdgePlan
from autopipe.documents.profile import Source
from autopipe.reporting.plan_table import (
    alternative_table,
    certificate_sentence,
    headline,
    link_sentence,
    plan_report,
    rank_table,
    stage_table,
)
from autopipe.reporting.text import as_text
from tests.conftest import Golden
from tests.reporting import samples


def test_report_looks_as_it_should(golden: Golden) -> None:
    golden.check("plan.txt", as_text(plan_report(samples.plan())))


def test_stage_columns_add_up_to_the_printed_total() -> None:
    lines = as_text(stage_table(samples.plan()), width=120).splitlines()
    numbers = [[float(word) for word in re.findall(r"\d+\.\d\d", line)] for line in lines]
    first, second, total = [row for row in numbers if len(row) == 5]
    assert total == [pytest.approx(a + b) for a, b in zip(first, second, strict=True)]


def test_every_rank_stands_beside_its_limit() -> None:
    text = as_text(rank_table(samples.plan()))
    assert "44.00 64.00 68.8 %" in text
    assert "33.00 64.00 51.6 %" in text


def test_a_rank_without_a_limit_shows_a_dash() -> None:
    plan = samples.plan()
    ranks = tuple(msgspec.structs.replace(rank, memory_limit_bytes=None) for rank in plan.ranks)
    line = as_text(rank_table(msgspec.structs.replace(plan, ranks=ranks))).splitlines()[-1]
    assert line.split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("optimal", "Two proofs. Of the stages: none are better, HiGHS"),
        ("feasible", "Stopped at a limit of time or work with a plan at most 1.1 % above the lower bound"),
        ("heuristic", "Found without a solver"),
    ],
)
def test_certificate_says_how_the_search_ended(status: str, words: str) -> None:
    sentence = certificate_sentence(samples.plan(status).certificate).plain
    assert sentence.startswith(words)
    assert "297.00 ms" in sentence


@pytest.mark.parametrize(
    ("speed", "latency", "words"),
    [(None, None, "taken as free"), (25 * 10**9, 5000, "25 GB/s, latency 5.00 us"), (None, 5000, "bandwidth taken as")],
)
def test_the_links_that_were_assumed_are_named(speed: int | None, latency: int | None, words: str) -> None:
    edge = EdgePlan(
        source=0, target=1, gradient=True, forward_bytes=8, backward_bytes=8, latency_ns=latency, bytes_per_s=speed
    )
    text = link_sentence(msgspec.structs.replace(samples.plan(), edges=(edge, edge))).plain
    assert words in text
    assert "--bandwidth" in text


def test_names_of_layers_break_at_their_dots() -> None:
    stage = msgspec.structs.replace(samples.plan().stages[0], layers=("vit.embeddings.patch_embeddings", "vit.layer.1"))
    plan = samples.plan()
    text = as_text(stage_table(msgspec.structs.replace(plan, stages=(stage, *plan.stages[1:]))))
    assert re.search(r" patch_embeddings( |$)", text, re.MULTILINE)


def test_alternatives_that_do_not_fit_come_last_with_their_reason() -> None:
    lines = as_text(alternative_table(samples.plan())).splitlines()
    assert "+" not in lines[-1]
    assert "+9.3 %" in lines[-2]
    assert "rank 0 needs 9.00 GiB of 8.00 GiB" in lines[-1]


def test_only_the_best_alternatives_are_shown_and_the_rest_counted() -> None:
    text = as_text(alternative_table(samples.plan(), most=1))
    assert "and 1 more in the plan file" in text
    assert "9.00 GiB" not in text


def test_headline_counts_the_samples_of_all_replicas() -> None:
    plan = msgspec.structs.replace(samples.plan(), data_parallel_size=3)
    assert "x 3 replicas" in headline(plan).plain
    assert "(64.0 samples/s)" in headline(plan).plain


@pytest.mark.parametrize("source", [Source.ROOFLINE, Source.CALIBRATED])
def test_every_table_of_a_plan_without_the_device_is_marked(source: Source) -> None:
    plan = msgspec.structs.replace(samples.plan(), source=source)
    assert "All times are estimates by the roofline" in headline(plan).plain
    for table in (stage_table, rank_table, alternative_table):
        assert f"({source})" in as_text(table(plan))
        assert f"({source})" not in as_text(table(samples.plan()))
    assert "estimates" not in headline(samples.plan()).plain
