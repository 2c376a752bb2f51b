"""A time under all steps by counting how many of the long layers each rank can take within it and its memory."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopipe.planner.prices import NEVER, Demand, Floats

SHARES = (0.0, 0.25, 0.5)
SLACK_NS = 1e-6
ENDLESS = 1e30


def counted_bound_ns(asked: Demand, *, enough_ns: int | None = None) -> int:
    """Return a time under every step, whatever the split and whoever recomputes.

    Layers are whole: with 96 equal ones on 32 ranks one rank has three. For several sets of long layers, each counted
    as the shortest and smallest of its set, it is the least step in which all ranks together take the whole set.

    Parameters
    ----------
    enough_ns : int, optional
        A higher time than this need not be known.

    Notes
    -----
    A rank takes a layers as they are and b that recompute, where both their times and what they hold fit. All stages of
    a rank have at least n micro-batches in flight at some moment, so its layers hold n times what they save.
    """
    lengths = np.sort(asked.time_ns[0])
    shortest = sorted({float(lengths[int(share * len(lengths))]) for share in SHARES}, reverse=True)
    sets = [_Set.of(asked, asked.time_ns[0] >= length) for length in shortest]
    if enough_ns is not None and any(_taken(asked, enough_ns, one) < one.most for one in sets):
        return enough_ns
    bound = 0
    for one in sets:
        if _taken(asked, bound, one) < one.most:
            bound = _least_step_ns(asked, one, bound)
    return bound


@dataclass(frozen=True, kw_only=True)
class _Set:
    """Long layers: how many, and the least that one of them takes, as it is and when it recomputes."""

    most: int
    plain_ns: float
    again_ns: float
    state_bytes: float
    saved_bytes: float
    kept_bytes: float

    @classmethod
    def of(cls, asked: Demand, chosen: npt.NDArray[np.bool_]) -> "_Set":
        plain, again = (float(own[chosen].min()) for own in asked.time_ns)
        saved, kept = (float(own[chosen].min()) for own in asked.saved_bytes)
        if again >= NEVER:
            again, kept = plain, saved
        return cls(
            most=int(chosen.sum()),
            plain_ns=plain,
            again_ns=again,
            state_bytes=float(asked.state_bytes[chosen].min()),
            saved_bytes=saved,
            kept_bytes=kept,
        )


def _least_step_ns(asked: Demand, one: _Set, low: int) -> int:
    """Return the least step above ``low`` in which the ranks take the whole set, ``low`` if they never do."""
    high = int(asked.micro_batches * one.most * one.again_ns / asked.speed.min() + asked.before_ns[-1]) + 1
    if _taken(asked, high, one) < one.most:
        return low
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _taken(asked, middle, one) >= one.most else (middle + 1, high)
    return low


def _taken(asked: Demand, step_ns: int, one: _Set) -> float:
    """Return how many layers of a set all ranks can take together within a step."""
    ranks = len(asked.speed)
    first = np.flatnonzero(asked.first)
    begins: Floats = np.zeros(ranks)
    begins[asked.home[first]] = asked.before_ns[np.minimum(first, len(asked.before_ns) - 1)]
    left = ((step_ns - begins) * asked.speed / asked.micro_batches)[:, None]
    held = asked.least_in_flight[:, None]
    whole = np.arange(one.most + 1, dtype=float)[None, :]
    room = asked.limit_bytes[:, None] - whole * (one.state_bytes + held * one.saved_bytes)
    spare = left - whole * one.plain_ns
    by_time = np.floor((spare + SLACK_NS) / max(one.again_ns, SLACK_NS))
    size = one.state_bytes + held * one.kept_bytes
    by_memory = np.where(size > 0, np.floor(np.minimum(room, ENDLESS) / np.maximum(size, 1)), one.most)
    more = np.where((room >= 0) & (spare >= -SLACK_NS), np.minimum(by_time, by_memory), -np.inf)
    return float(np.clip((whole + more).max(axis=1), 0, one.most).sum())
