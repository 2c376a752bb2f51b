"""Shares that are rounded and add up all the same."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.reporting.columns import bytes_scale, shares_that_add_up, times_scale


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_rounded_shares_add_up_to_one_and_none_is_off_by_a_tenth_of_a_per_cent(parts: list[int]) -> None:
    shares = shares_that_add_up(tuple(parts))
    total = sum(parts)
    assert round(1000 * sum(shares)) == (1000 if total else 0)
    assert all(abs(share - part / max(total, 1)) < 0.001001 for share, part in zip(shares, parts, strict=True))


def test_a_third_each_is_rounded_up_once() -> None:
    assert shares_that_add_up((1, 1, 1)) == (0.334, 0.333, 0.333)


def test_columns_share_the_unit_of_the_largest_figure() -> None:
    assert times_scale((1, 2), (3_000_000,)).unit == "ms"
    assert bytes_scale((), (5,)).unit == "KiB"
