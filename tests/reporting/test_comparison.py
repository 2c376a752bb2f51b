"""Predicted beside measured: the right quantities, the right error."""

import pytest

from autopipe.errors import MismatchError
from autopipe.reporting.comparison import Pair, compare, comparison_table
from autopipe.reporting.text import as_text
from autopipe.units import MIB, MILLISECOND
from tests.conftest import Golden
from tests.reporting import samples


def test_table_looks_as_it_should(golden: Golden) -> None:
    pairs = compare(samples.plan(), samples.timeline(source="measured"))
    golden.check("comparison.txt", as_text(comparison_table(pairs)))


def test_step_busy_time_and_peak_memory_of_every_rank_are_compared() -> None:
    pairs = compare(samples.plan(), samples.timeline(source="measured"))
    assert [pair.name for pair in pairs] == [
        "step",
        "rank 0 busy",
        "rank 1 busy",
        "rank 0 peak memory",
        "rank 1 peak memory",
    ]
    # 4 micro-batches of 3 ms on 2 ranks: 12 ms busy in a step of 15 ms.
    assert [pair.measured for pair in pairs] == [
        15 * MILLISECOND,
        12 * MILLISECOND,
        12 * MILLISECOND,
        40 * MIB,
        39 * MIB,
    ]


def test_error_is_relative_to_what_was_measured() -> None:
    assert Pair("step", 110, 100, "ns").error == pytest.approx(0.1)
    assert Pair("step", 110, None, "ns").error is None


def test_what_was_not_measured_shows_a_dash() -> None:
    line = as_text(comparison_table((Pair("rank 0 peak memory", MIB, None, "bytes"),))).splitlines()[-1]
    assert line.split()[-2:] == ["-", "-"]


def test_a_timeline_of_another_pipeline_is_refused() -> None:
    with pytest.raises(MismatchError, match="the plan has 2 ranks and the timeline 3"):
        compare(samples.plan(), samples.timeline(stages=3))
