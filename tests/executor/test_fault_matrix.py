"""Every fault on every rank of two: both ranks end within seconds, with the same sentence about the first cause."""

import pytest

from tests.faults import cases, play


@pytest.mark.case(7, 8)
def test_every_fault_ends_or_leaves_all_ranks_with_its_cause() -> None:
    outcomes = list(play(cases(2, "1f1b"), at_once=4))
    wrong = [f"{outcome.case}: {outcome.fault}" for outcome in outcomes if outcome.fault]
    assert not wrong, "\n".join(wrong)
    assert len(outcomes) == 32
