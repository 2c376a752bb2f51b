"""Clocks and rounds: how segments of a step are timed, repeated and summed up."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from autopipe.documents.profile import Spread

WARM_UP_ROUNDS = 3
MINIMUM_ROUNDS = 5
LEAST_S = 1.0
CALIBRATING_CYCLES = 10_000_000
MOST_CYCLES = 2_000_000_000
TOLERANCE = 0.02

Progress = Callable[[str, float], None]


class Clock(Protocol):
    """Marks points in time; durations may be asked for once `finish` has returned."""

    name: str

    def mark(self) -> Any:
        """Return a mark of this moment."""

    def finish(self) -> None:
        """Wait until every mark has a time."""

    def between(self, start: Any, end: Any) -> int:
        """Return the nanoseconds from mark ``start`` to mark ``end``."""

    def host_between(self, start: Any, end: Any) -> int | None:
        """Return the nanoseconds that the host took between the two; None where it does the work itself."""

    def head_start(self) -> None:
        """Give the host a head start of the last step's length, so that the device never waits for it."""


class HostClock:
    """A clock of the host, read where it is marked."""

    def __init__(self, name: str, read: Callable[[], int]) -> None:
        self.name = name
        self.mark = read

    def finish(self) -> None:
        """Do nothing: a host clock's marks are times already."""

    def between(self, start: int, end: int) -> int:
        """Return the nanoseconds from ``start`` to ``end``."""
        return end - start

    def host_between(self, start: int, end: int) -> None:
        """Return None: the host does the work itself."""

    def head_start(self) -> None:
        """Do nothing: there is no device that could wait."""


class EventClock:
    """A clock of events on an accelerator's current stream: one synchronisation a round.

    Before each step the stream is kept busy for as long as the host took to issue the step before, where the
    accelerator has an operation for that: events then lie as far apart as the device's work takes, and do not
    wait for the host, which `host_between` tells of.
    """

    def __init__(self, device: torch.device) -> None:
        self.name = f"{device.type} events"
        self._device = device
        self._sleep = torch.cuda._sleep if device.type == "cuda" else None
        self._cycles_for_a_ns = 0.0
        self._first_ns: int | None = None
        self._last_ns = 0

    def mark(self) -> tuple[torch.Event, int]:
        """Record an event on the current stream, and the host's time."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        self._last_ns = time.perf_counter_ns()
        if self._first_ns is None:
            self._first_ns = self._last_ns
        return event, self._last_ns

    def finish(self) -> None:
        """Synchronise the accelerator."""
        torch.accelerator.synchronize(self._device)
        self._first_ns = None

    def between(self, start: tuple[torch.Event, int], end: tuple[torch.Event, int]) -> int:
        """Return the nanoseconds that the stream took from ``start`` to ``end``."""
        return round(start[0].elapsed_time(end[0]) * 1e6)

    def host_between(self, start: tuple[torch.Event, int], end: tuple[torch.Event, int]) -> int:
        """Return the nanoseconds that the host took to issue what lies between."""
        return end[1] - start[1]

    def head_start(self) -> None:
        """Keep the stream busy for as long as the host took between the first and the last mark of the last step."""
        if self._sleep is not None and self._first_ns is not None:
            cycles = (self._last_ns - self._first_ns) * self._clock_rate()
            self._sleep(min(MOST_CYCLES, round(cycles)))
        self._first_ns = None

    def _clock_rate(self) -> float:
        """Return the cycles of the device's clock in a nanosecond, met once by sleeping."""
        if not self._cycles_for_a_ns:
            assert self._sleep is not None
            begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            begin.record()
            self._sleep(CALIBRATING_CYCLES)
            end.record()
            torch.accelerator.synchronize(self._device)
            self._cycles_for_a_ns = CALIBRATING_CYCLES / (begin.elapsed_time(end) * 1e6)
        return self._cycles_for_a_ns


def choose_clock(device: torch.device) -> Clock:
    """Return the clock for ``device``: events on an accelerator; on the CPU the thread's time or the wall clock.

    With one thread all work of a CPU step runs in the calling thread, backward included, and the thread's
    own time leaves out what other processes took. With more threads only the wall clock sees all of them.
    """
    if device.type != "cpu":
        return EventClock(device)
    if torch.get_num_threads() == 1:
        return HostClock("thread time", time.thread_time_ns)
    return HostClock(f"wall clock, {torch.get_num_threads()} threads", time.perf_counter_ns)


class Samples:
    """Durations in nanoseconds by key; layers that share a key share a pool."""

    def __init__(self, pools: Mapping[str, Sequence[int]] | None = None, rounds: int = 0) -> None:
        self._pools: dict[str, list[int]] = {key: list(pool) for key, pool in (pools or {}).items()}
        self.rounds = rounds

    @property
    def pools(self) -> dict[str, list[int]]:
        """Every pool by its name."""
        return self._pools

    def add(self, key: str, duration_ns: int) -> None:
        """Add one duration to the pool of ``key``."""
        self._pools.setdefault(key, []).append(duration_ns)

    def median(self, key: str) -> int:
        """Return the median of the pool of ``key``, 0 where nothing was timed."""
        pool = self._pools.get(key)
        return round(statistics.median(pool)) if pool else 0

    def spread(self, key: str) -> Spread | None:
        """Return how far the median of ``key`` can be trusted, None where nothing was timed."""
        pool = self._pools.get(key)
        if not pool:
            return None
        return Spread(mad_ns=_deviation(pool), minimum_ns=min(pool), rounds=len(pool))

    def relative_deviation(self) -> float:
        """Return the median absolute deviation over the median, averaged over pools by the time they take."""
        total = sum(statistics.median(pool) * len(pool) for pool in self._pools.values())
        return sum(_deviation(pool) * len(pool) for pool in self._pools.values()) / total if total > 0 else 0.0


def repeat(
    one_round: Callable[[Samples], None],
    *,
    budget_s: float,
    least_s: float = LEAST_S,
    before: Samples | None = None,
    progress: Progress | None = None,
    label: str = "",
) -> Samples:
    """Run ``one_round`` until its timings are steady or ``budget_s`` seconds are over, and return the samples.

    Three rounds of warm-up come first (fewer, at least one, where they take over a third of the budget) and
    do not count. Timings are steady after at least five rounds and ``least_s`` seconds, when their relative median
    absolute deviation is below 2 %. One round runs whatever the budget is. Samples from ``before`` are added to,
    and hold what was measured if a round is interrupted.
    """
    samples, scratch = before or Samples(), Samples()
    start = time.monotonic()
    for warm_up in range(WARM_UP_ROUNDS):
        if warm_up and time.monotonic() - start > budget_s / 3:
            break
        _without_collection(one_round, scratch)
    while True:
        _without_collection(one_round, samples)
        samples.rounds += 1
        spent = time.monotonic() - start
        if progress is not None:
            progress(label, min(1.0, spent / budget_s) if budget_s > 0 else 1.0)
        enough = samples.rounds >= MINIMUM_ROUNDS and spent >= least_s
        steady = enough and samples.relative_deviation() < TOLERANCE
        if steady or spent >= budget_s:
            return samples


def _without_collection(one_round: Callable[[Samples], None], samples: Samples) -> None:
    # A garbage collection would land in whichever segment happens to allocate the last straw.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        one_round(samples)
    finally:
        if was_enabled:
            gc.enable()


def _deviation(pool: list[int]) -> int:
    median = statistics.median(pool)
    return round(statistics.median(abs(duration - median) for duration in pool))
