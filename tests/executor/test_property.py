"""Random models under random plans train like the plain model; docs/benchmarks/property tries many more."""

import pytest

from tests.property import check

DRAWS = 24


@pytest.mark.case(15)
@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_random_model_under_a_random_plan_trains_like_the_plain_model(seed: int) -> None:
    drawn, different = check(seed)
    assert different == [], drawn
