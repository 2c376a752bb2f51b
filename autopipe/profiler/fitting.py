"""Micro-batch sizes that fit are found by doubling, as long as larger ones are worth a look."""

from collections.abc import Callable
from typing import NamedTuple

from autopipe.recorder.exhaustion import is_out_of_memory

MOST_SIZES = 6
LARGEST = 1 << 14
LONGEST_NS = 4_000_000_000
WORTH = 0.95


class Trial(NamedTuple):
    """One step at one size: its time, and the most bytes that it held beside the model."""

    step_ns: int
    peak_bytes: int


def fitting_sizes(attempt: Callable[[int], Trial], *, room_bytes: int | None) -> tuple[int, ...]:
    """Return powers of two, ascending, from the largest that fits and is worth it down.

    Sizes double until memory runs out or twice the peak would not fit into ``room_bytes``, until two doublings
    together no longer save 5 % of the time for a sample, or a step takes over four seconds. Of many sizes the
    largest six are taken.

    Raises
    ------
    Exception
        What ``attempt`` raises, unless memory has run out and a smaller size fitted.
    """
    fitting: list[int] = []
    for_a_sample: list[float] = []
    size = 1
    while size <= LARGEST:
        try:
            trial = attempt(size)
        except Exception as error:
            cause = error.__cause__
            if fitting and (is_out_of_memory(error) or (isinstance(cause, Exception) and is_out_of_memory(cause))):
                break
            raise
        fitting.append(size)
        for_a_sample.append(trial.step_ns / size)
        saves_little = len(fitting) > 2 and for_a_sample[-1] > WORTH * for_a_sample[-3]
        is_full = room_bytes is not None and 2 * trial.peak_bytes > room_bytes
        if saves_little or is_full or trial.step_ns > LONGEST_NS:
            break
        size *= 2
    return tuple(fitting[-MOST_SIZES:])
