"""Nanoseconds and bytes as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.units import (
    GIB,
    KIB,
    MIB,
    MILLISECOND,
    SECOND,
    byte_scale,
    format_bytes,
    format_share,
    format_time,
    time_scale,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (KIB, "1.00 KiB"), (3 * MIB // 2, "1.50 MiB"), (-2 * GIB, "-2.00 GiB")],
)
def test_sizes_read_in_the_largest_unit_they_fill(size: int | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [(None, "-"), (999, "999 ns"), (1500, "1.50 us"), (12_300_000, "12.30 ms"), (2 * SECOND, "2.00 s")],
)
def test_durations_read_in_the_largest_unit_they_fill(duration: int | None, text: str) -> None:
    assert format_time(duration) == text


def test_shares_read_as_per_cent() -> None:
    assert (format_share(0.125), format_share(None)) == ("12.5 %", "-")


@given(st.integers(0, 10**13))
def test_a_column_in_one_unit_says_what_the_value_alone_says(value: int) -> None:
    for scale, show in ((time_scale(value), format_time), (byte_scale(value), format_bytes)):
        number, unit = show(value).split()
        if unit == scale.unit:
            assert scale.format(value) == number
        else:
            assert value < scale.size
            assert float(scale.format(value)) <= 1.0


def test_a_column_has_the_unit_of_its_largest_figure() -> None:
    assert time_scale(SECOND).unit == "s"
    assert time_scale(SECOND - 1).unit == "ms"
    assert time_scale(MILLISECOND - 1).format(500) == "0.50"
    assert byte_scale(GIB).unit == "GiB"
    assert byte_scale(MIB).format(None) == "-"
