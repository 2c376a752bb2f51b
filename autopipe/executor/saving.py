"""A checkpoint is written here and now, or by a thread while training goes on."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path


class Saving:
    """A checkpoint that is being written, perhaps while training goes on."""

    def __init__(self, work: Callable[[], Path]) -> None:
        self._work = work
        self._path: Path | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._thread: threading.Thread | None = None

    def start(self, *, in_background: bool) -> None:
        """Write it: here, or in a thread, which the process waits for when it ends."""
        if in_background:
            self._thread = threading.Thread(target=self._run, name="autopipe-save")
            self._thread.start()
        else:
            self._run()

    def _run(self) -> None:
        try:
            self._path = self._work()
        except BaseException as error:
            self._error = error
            if self._thread is not None:  # the script may end without asking
                warnings.warn(str(error), stacklevel=2)

    def done(self) -> bool:
        """Return whether it is written, or failed."""
        return self._thread is None or not self._thread.is_alive()

    def settle(self) -> None:
        """Wait until it is written, and raise what went wrong unless `wait` has."""
        if self._thread is not None:
            self._thread.join()
        if not self._is_told:
            self.wait()

    def wait(self) -> Path:
        """Return where the checkpoint is, once it is whole.

        Raises
        ------
        DocumentError
            On every rank, if some rank could not write; checkpoints before this one are as they were.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            self._is_told = True
            raise self._error
        assert self._path is not None
        return self._path
