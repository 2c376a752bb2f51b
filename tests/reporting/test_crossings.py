from hypothesis import given
from hypothesis import strategies as st

from autopipe.reporting.crossings import crossings, words_for
from tests.reporting import graphs


def test_a_value_crosses_every_place_up_to_its_last_reader() -> None:
    places = crossings(graphs.graph())
    assert [place.position for place in places] == [1, 2, 3, 4]
    assert [[value.name for value in place.values] for place in places] == [
        ["ids", "n0"],
        ["ids", "n1"],
        ["ids", "n2"],
        ["ids", "n3"],
    ]
    assert all(place.bytes == 8192 + 256 for place in places)
    assert [place.forbidden is None for place in places] == [True, True, True, False]


@given(st.permutations(graphs.graph().values))
def test_words_do_not_depend_on_the_order_of_values(values: list) -> None:
    assert words_for(tuple(values)) == "4 of 2x16x64 float32, 2x16 int64"
