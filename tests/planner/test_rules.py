"""Other systems' rules split as their descriptions say, every layer in one stage and no stage empty."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.planner.rules import block_partition, equal_count, least_bottleneck

RULES = {"equal count": equal_count, "least bottleneck": least_bottleneck, "block partition": block_partition}
WEIGHTS = st.lists(st.integers(0, 9), min_size=1, max_size=9)


@given(weights=WEIGHTS, data=st.data())
@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_layer_is_in_one_stage_and_no_stage_is_empty(rule, weights, data):
    stages = data.draw(st.integers(1, len(weights)))
    bounds = RULES[rule]([float(weight) for weight in weights], stages)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(weights), stages + 1)
    assert all(begin < end for begin, end in pairwise(bounds))


@given(weights=WEIGHTS, data=st.data())
def test_the_heaviest_stage_is_as_light_as_can_be(weights, data):
    stages = data.draw(st.integers(1, len(weights)))

    def heaviest(bounds):
        return max(sum(weights[begin:end]) for begin, end in pairwise(bounds))

    splits = [(0, *inner, len(weights)) for inner in combinations(range(1, len(weights)), stages - 1)]
    assert heaviest(least_bottleneck(weights, stages)) == min(map(heaviest, splits))


def test_counts_that_do_not_come_out_even_differ_by_one():
    assert equal_count([1.0] * 30, 4) == (0, 8, 16, 23, 30)


def test_blocks_move_towards_the_lightest():
    assert block_partition([1, 2, 3, 4, 5, 6], 2) == (0, 4, 6)
    assert block_partition([1.0] * 6, 3) == (0, 2, 4, 6)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_more_stages_than_layers_are_refused(rule):
    with pytest.raises(InputError, match="2 layers do not make 3 stages"):
        RULES[rule]([1.0, 1.0], 3)
