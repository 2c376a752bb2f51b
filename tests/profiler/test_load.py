import resource
from pathlib import Path

import pytest

from autopipe.profiler.load import ForeignLoad


def write(path: Path, busy: int, idle: int) -> None:
    path.write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")


def test_foreign_load_is_what_others_took_of_all_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [0.0]

    class Usage:
        ru_stime = 0.0

        @property
        def ru_utime(self) -> float:
            return own[0]

    monkeypatch.setattr("os.sysconf", lambda _: 100)
    monkeypatch.setattr(resource, "getrusage", lambda _: Usage())
    stat = tmp_path / "stat"
    write(stat, busy=1000, idle=1000)
    load = ForeignLoad(stat)
    write(stat, busy=1600, idle=1400)
    own[0] = 4.0
    assert load.share() == pytest.approx(0.2)


def test_foreign_load_is_unknown_where_the_system_hides_it(tmp_path: Path) -> None:
    assert ForeignLoad(tmp_path / "missing").share() is None


def test_foreign_load_is_unknown_before_any_time_has_passed(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write(stat, busy=1000, idle=1000)
    assert ForeignLoad(stat).share() is None
