"""The table of a profile: golden text, and columns that add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.reporting.profile_table import profile_report, rows
from autopipe.reporting.text import as_text
from tests.conftest import Golden
from tests.reporting import samples


def figures(line: str, name: str) -> list[float]:
    """The numbers of a table line behind its name."""
    return [float(word) for word in line.split(name, 1)[1].replace("%", "").split()]


def test_report_looks_as_it_should(golden: Golden) -> None:
    golden.check("profile.txt", as_text(profile_report(samples.profile())))


def test_report_of_few_heaviest_layers_puts_the_others_in_one_row(golden: Golden) -> None:
    golden.check("profile_heaviest.txt", as_text(profile_report(samples.profile(), micro_batch=1, heaviest=2)))


def test_printed_columns_add_up_to_the_printed_total() -> None:
    lines = as_text(profile_report(samples.profile(), heaviest=3)).splitlines()
    names = ("blocks.0", "blocks.1", "blocks.2", "2 other layers", "loss: cross_entropy")
    parts = [figures(line, name) for name in names for line in lines if name in line and "deviation" not in line]
    (total,) = [figures(line, "total") for line in lines if line.strip().startswith("total")]
    assert len(parts) == 5
    for column in range(5):
        assert sum(part[column] for part in parts) == pytest.approx(total[column], abs=0.03)
    assert max(part[5] for part in parts) == total[5]


@given(st.integers(0, 1), st.integers(1, 9))
def test_total_does_not_depend_on_how_many_layers_have_a_row(index: int, heaviest: int) -> None:
    profile = samples.profile()
    total = rows(profile, index, heaviest)[-1]
    assert total == rows(profile, index, 5)[-1]
    assert total.forward_ns == sum(layer.costs[index].forward_ns for layer in profile.layers) + (
        profile.loss[index].forward_ns
    )


def test_heaviest_layer_comes_first_and_the_lightest_last() -> None:
    names = [row.name for row in rows(samples.profile(), 0)]
    assert names == ["blocks.0", "blocks.1", "blocks.2", "head", "tokens", "loss: cross_entropy", "total"]


def test_a_size_that_was_not_profiled_is_refused_with_those_that_were() -> None:
    with pytest.raises(InputError, match="size 3 was not profiled, only 1, 2"):
        profile_report(samples.profile(), micro_batch=3)
