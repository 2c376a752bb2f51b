"""A process that must end does not wait for whoever holds its standard error."""

import io
import sys
import threading

import pytest

from autopipe.executor import last_words


class Stuck(io.StringIO):
    """A stream that nobody reads, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.free.wait()
        return super().write(text)

    def flush(self) -> None:
        self.free.wait()


def test_words_that_cannot_be_written_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    monkeypatch.setattr(last_words, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(sys, "stderr", stuck)
    monkeypatch.setattr(sys, "stdout", stuck)
    last_words.say("rank 1 leaves")
    last_words.flush_output()
    assert stuck.getvalue() == ""
    stuck.free.set()
    monkeypatch.setattr(last_words, "_PATIENCE_S", 30.0)
    last_words.say("rank 1 leaves")
    assert "rank 1 leaves\n" in stuck.getvalue()
