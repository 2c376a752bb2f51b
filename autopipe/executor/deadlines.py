"""Deadlines say how long a rank may take over one action before it counts as stuck."""

import os
from dataclasses import dataclass

from autopipe.errors import InputError

VARIABLE = "AUTOPIPE_DEADLINE_S"


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long is too long, in seconds.

    Parameters
    ----------
    first_s : float
        For an action before the first step has been measured, and in every step with inputs of a new shape:
        they compile, allocate and tune.
    floor_s : float
        For any other action, at the least.
    factor : float
        For any other action: so many times the longest of the last measured steps.
    idle_s : float
        Between steps, while another rank waits: for loaders, saving, evaluation by one rank alone.
    """

    first_s: float = 300.0
    floor_s: float = 30.0
    factor: float = 25.0
    idle_s: float = 600.0

    def limit_s(self, longest_s: float | None) -> float:
        """Return how long an action may take, if the longest measured one took ``longest_s``; None: none yet."""
        return self.first_s if longest_s is None else max(self.floor_s, self.factor * longest_s)

    @classmethod
    def chosen(cls, seconds: float | None) -> "Deadlines":
        """Return deadlines that are ``seconds`` for every action, whatever was measured.

        Where ``seconds`` is None the environment variable ``AUTOPIPE_DEADLINE_S`` says it, or nothing: then they
        follow what is measured.

        Raises
        ------
        InputError
            If it is no positive number.
        """
        origin = "deadline_s="
        if seconds is None:
            text = os.environ.get(VARIABLE)
            if text is None:
                return cls()
            origin = f"{VARIABLE}="
            try:
                seconds = float(text)
            except ValueError:
                raise InputError(f"{VARIABLE}={text} is no number: give seconds, such as 120.") from None
        if not seconds > 0:
            raise InputError(f"{origin}{seconds:g} is no time to wait: give positive seconds, such as 120.")
        return cls(first_s=seconds, floor_s=seconds, factor=0.0, idle_s=max(seconds, cls.idle_s))
