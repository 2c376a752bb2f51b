"""How long an action may take: derived from what was measured, or said by the user."""

import pytest

from autopipe.errors import InputError
from autopipe.executor.deadlines import Deadlines


def test_the_deadline_is_a_multiple_of_the_longest_action_with_a_floor() -> None:
    deadlines = Deadlines()
    assert deadlines.limit_s(None) == 300.0
    assert deadlines.limit_s(0.01) == 30.0
    assert deadlines.limit_s(4.0) == 100.0


def test_a_user_or_the_environment_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Deadlines.chosen(2.0).limit_s(None) == Deadlines.chosen(2.0).limit_s(5.0) == 2.0
    monkeypatch.setenv("AUTOPIPE_DEADLINE_S", "7")
    assert Deadlines.chosen(None).limit_s(100.0) == 7.0
    assert Deadlines.chosen(3.0).limit_s(100.0) == 3.0


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "0"])
def test_what_is_no_time_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPIPE_DEADLINE_S", text)
    with pytest.raises(InputError, match="AUTOPIPE_DEADLINE_S"):
        Deadlines.chosen(None)
