"""What the ranks of the demo write down: the median step, and the load of others."""

import msgspec
import pytest

from autopipe.cli.observed import Usage, foreign_share, median_step
from tests.reporting import samples


def test_the_step_of_median_duration_is_kept() -> None:
    timelines = [msgspec.structs.replace(samples.timeline(), step_ns=duration) for duration in (5, 1, 3, 4)]
    assert median_step(timelines).step_ns == 3


def test_ranks_are_not_foreign_to_each_other() -> None:
    # Two cores: each rank fills 40 % of the machine, another program 10 %.
    usages = [Usage(own_share=0.4, others_share=0.5), Usage(own_share=0.4, others_share=0.5)]
    assert foreign_share(usages) == pytest.approx(0.1)


def test_a_hidden_load_is_not_known() -> None:
    assert foreign_share([Usage(own_share=0.4, others_share=None)]) is None
