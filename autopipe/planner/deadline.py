"""The time by which planning should be done: one clock, at which all of its phases look."""

import time
from dataclasses import dataclass


class OutOfTimeError(Exception):
    """The deadline passed before the answer was known."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A moment on the clock of `time.monotonic`, in seconds; what is limited by work alone never looks at it.

    A search that ends before its deadline does the same work as one without: the plan depends on the clock only
    where the limit is hit.
    """

    at_s: float

    @classmethod
    def after(cls, limit_s: float) -> "Deadline":
        """Return the deadline ``limit_s`` seconds from now."""
        return cls(at_s=time.monotonic() + max(0.0, limit_s))

    @property
    def left_s(self) -> float:
        """The seconds that are left, negative once it is over."""
        return self.at_s - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self.left_s <= 0

    def sooner(self, seconds: float) -> "Deadline":
        """Return an earlier one, which keeps ``seconds`` for what comes after."""
        return Deadline(at_s=self.at_s - seconds)

    def check(self) -> None:
        """Raise `OutOfTimeError` if it has passed."""
        if self.is_over:
            raise OutOfTimeError


NEVER = Deadline(at_s=float("inf"))
