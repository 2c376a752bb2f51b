"""Last words are what a process says before it ends because of a failure: on its standard error, come what may.

They are written neither by `logging` nor by the thread that says them: the thread that hangs may hold a lock of a
handler or of a stream, or nobody may read the other end any more, and the process must end all the same.
"""

import sys
import threading
from collections.abc import Callable

_PATIENCE_S = 1.0


def say(text: str) -> None:
    """Write a line to standard error; return after a second if that cannot be done."""

    def write() -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    _within(_PATIENCE_S, write)


def flush_output() -> None:
    """Let out what was printed and is still held back; return after a second if that cannot be done."""
    _within(_PATIENCE_S, sys.stdout.flush)


def _within(seconds: float, work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name="autopipe-last-words", daemon=True)
    thread.start()
    thread.join(seconds)
