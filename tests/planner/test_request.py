"""What is asked of the planner."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.planner.request import micro_batch_sizes
from tests.profiles import cost, layer, profile


def sized(*sizes: int):
    return profile([layer("a", [cost()] * len(sizes))], micro_batches=sizes, loss=[cost()] * len(sizes))


def test_one_size_for_each_number_of_micro_batches():
    assert micro_batch_sizes(sized(1, 16), 16, None) == (1, 2, 3, 4, 6, 8, 16)


def test_a_profile_of_one_size_leaves_no_choice():
    assert micro_batch_sizes(sized(4), 10, None) == (4,)


@given(least=st.integers(1, 20), most=st.integers(1, 40), batch=st.integers(1, 200))
def test_no_size_is_above_what_its_number_of_micro_batches_needs(least, most, batch):
    most = max(least, most)
    if batch < least:
        return
    sizes = micro_batch_sizes(sized(*sorted({least, most})), batch, None)
    assert all(least <= size <= min(most, batch) for size in sizes)
    counts = [-(-batch // size) for size in sizes]
    assert len(set(counts)) == len(counts)
    assert set(counts) == {-(-batch // size) for size in range(least, min(most, batch) + 1)}
