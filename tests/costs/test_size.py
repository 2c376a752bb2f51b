"""Reading a profile off at one micro-batch size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.costs.size import at_size
from autopipe.documents.profile import Source
from autopipe.errors import InputError
from tests.profiles import cost, layer, profile


def two_sizes(low: int = 100, high: int = 180):
    costs = [cost(low, saved_bytes=8 * low), cost(high, saved_bytes=8 * high)]
    return profile([layer("a", costs), layer("b", costs)], micro_batches=(2, 6), loss=costs, crossing_bytes=4)


def test_a_profiled_size_keeps_its_costs_and_their_source():
    sized = at_size(two_sizes(), 6)
    assert sized.costs[0].forward_ns == 180
    assert sized.costs[0].source is Source.MEASURED
    assert sized.value_bytes == (24,)


def test_half_way_between_two_sizes_is_half_way_between_their_costs():
    sized = at_size(two_sizes(), 4)
    assert (sized.costs[1].forward_ns, sized.costs[1].saved_bytes, sized.loss.backward_ns) == (140, 1120, 280)
    assert sized.value_bytes == (16,)
    assert {found.source for found in (*sized.costs, sized.loss)} == {Source.INTERPOLATED}


def test_above_the_largest_size_the_line_goes_on():
    assert at_size(two_sizes(), 8).costs[0].forward_ns == 220


def test_a_line_that_falls_is_not_followed_above_the_largest_size():
    assert at_size(two_sizes(180, 100), 20).costs[0].forward_ns == 100


def test_below_the_smallest_size_nothing_is_guessed():
    with pytest.raises(InputError, match="--micro-batch 1,2,6"):
        at_size(two_sizes(), 1)


def test_one_profiled_size_gives_no_line():
    with pytest.raises(InputError, match="--micro-batch 1,2"):
        at_size(profile([layer("a", [cost()])]), 2)


def test_what_was_not_measured_stays_unknown():
    costs = [cost(10, input_grad_ns=8, weight_grad_ns=12), cost(20)]
    sized = at_size(profile([layer("a", costs)], micro_batches=(1, 3), loss=costs), 2)
    assert sized.costs[0].input_grad_ns is None
    assert sized.costs[0].backward_ns == 30


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(2, 6))
def test_a_size_between_lies_between(low, high, size):
    found = at_size(two_sizes(low, high), size).costs[0].forward_ns
    assert min(low, high) <= found <= max(low, high)
    assert abs(found - (low + (high - low) * (size - 2) / 4)) <= 0.5 + 1e-6
