"""A time under all steps by prices of the ranks' time and memory, before the tables of any stage are made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopipe.costs.recompute import can_recompute
from autopipe.costs.stages import Intervals
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.kind import Kind
from autopipe.planner.step_bound import Seam, longest_before
from autopipe.schedules.moments import Moment, named_moments
from autopipe.schedules.named import placement

Floats = npt.NDArray[np.float64]
NEVER = 1e30
PENALTY = 100.0
SAFETY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a nanosecond and a byte of each rank are worth, in nanoseconds of the step; those of time sum to 1."""

    time: Floats
    memory: Floats


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What layers ask for as each stage: row 0 as they are, row 1 if they recompute.

    Attributes
    ----------
    time_ns, saved_bytes : array, shape (2, L)
        Of one micro-batch; `NEVER` where a layer cannot recompute.
    state_bytes, tail_ns : array, shape (L,)
        Held always, and done once a step.
    before_ns : array, shape (L + 1,)
        By boundary: what must come before and after the work of a rank whose first stage begins there.
    in_flight : array, shape (S,)
        Micro-batches of each stage at one moment of its rank, the one in hand included.
    least_in_flight : array, shape (p,)
        By rank: so many are in flight at each of its stages at some moment.
    home : array, shape (S,)
        The rank of each stage.
    speed, limit_bytes : array, shape (p,)
        Of each rank; the limit is infinite where it is not known.
    """

    micro_batches: int
    time_ns: Floats
    saved_bytes: Floats
    state_bytes: Floats
    tail_ns: Floats
    before_ns: Floats
    in_flight: Floats
    least_in_flight: Floats
    home: npt.NDArray[np.int64]
    speed: Floats
    limit_bytes: Floats
    forbidden_cuts: tuple[int, ...]

    @property
    def first(self) -> npt.NDArray[np.bool_]:
        """Whether a stage is the first one of its rank."""
        found = np.zeros(len(self.home), dtype=bool)
        found[np.unique(self.home, return_index=True)[1]] = True
        return found


def demand(intervals: Intervals, grid: DeviceGrid, *, kind: Kind, micro_batches: int) -> Demand:
    """Return what the layers ask for under a kind of schedule."""
    sized, times = intervals.sized, intervals.times
    ranks = len(grid.rows)
    plain = np.diff(times.forward_ns[0] + times.backward_ns[0]).astype(float)
    saved = np.array([cost.saved_bytes for cost in sized.costs], dtype=float)
    saved[-1] += sized.loss.saved_bytes
    able = [can_recompute(cost) and layer not in sized.recompute for layer, cost in enumerate(sized.costs)]
    spent = [cost.recompute_ns or 0 for cost in sized.costs]
    less = [cost.saved_bytes - (cost.saved_recompute_bytes or 0) for cost in sized.costs]
    before = [cost.forward_ns for cost in sized.costs]
    ways = longest_before(before, Seam(sized, trained=False).feeds)
    if not kind.splits:
        ways = ways + longest_before([cost.backward_ns for cost in sized.costs], Seam(sized, trained=True).feeds)
    in_flight, least = _in_flight(kind, ranks, micro_batches)
    speed = np.array([device.speed for device in grid.devices], dtype=float)
    limits = [np.inf if device.memory_bytes is None else device.memory_bytes for device in grid.devices]
    return Demand(
        micro_batches=micro_batches,
        time_ns=np.stack([plain, np.where(able, plain + spent, NEVER)]),
        saved_bytes=np.stack([saved, saved - np.where(able, less, 0)]),
        state_bytes=np.diff(intervals.memory.state[0]).astype(float),
        tail_ns=np.maximum(0, np.diff(times.optimizer_ns[0])).astype(float),
        before_ns=ways / speed.max(),
        in_flight=in_flight,
        least_in_flight=least,
        home=np.array(placement(kind.schedule, ranks=ranks, virtual=kind.virtual)),
        speed=speed,
        limit_bytes=np.array(limits, dtype=float),
        forbidden_cuts=tuple(sized.profile.forbidden_cuts),
    )


def priced_bound_ns(asked: Demand, prices: Prices) -> int:
    """Return a time under every step, whatever the split and whoever recomputes, at any prices.

    No step is shorter than the mean of all ranks' times, weighed by their prices. No rank holds more than its
    limit, so what a split holds, less the limits, is worth nothing or less, and may be added. Of that sum the least
    over all rows of stages is found from the first stage to the last, each layer taking the cheaper of its two ways.

    Notes
    -----
    The Lagrangian relaxation of the memory rows and of the longest rank. O(stages * L).
    """
    home = asked.home
    time = (prices.time / asked.speed)[home][:, None]
    memory = prices.memory[home][:, None]
    once = time * asked.tail_ns + memory * asked.state_bytes
    ways = [
        asked.micro_batches * time * np.minimum(own, NEVER) + memory * asked.in_flight[:, None] * held
        for own, held in zip(asked.time_ns, asked.saved_bytes, strict=True)
    ]
    sums = np.concatenate([np.zeros((len(home), 1)), np.cumsum(once + _cheaper(asked, ways), axis=1)], axis=1)
    cuts = [cut for cut in asked.forbidden_cuts if 0 < cut < sums.shape[1] - 1]
    least = np.full(sums.shape[1], np.inf)
    least[0] = 0.0
    for stage, first in enumerate(asked.first):
        begun = least - sums[stage]
        if first:
            begun = begun + prices.time[home[stage]] * asked.before_ns
        least[1:] = np.minimum.accumulate(begun)[:-1] + sums[stage][1:]
        least[0] = np.inf
        least[cuts] = np.inf
    known = np.isfinite(asked.limit_bytes)
    bound = float(least[-1]) - float(prices.memory[known] @ asked.limit_bytes[known])
    return max(0, int(bound * (1 - SAFETY))) if np.isfinite(bound) else 0


def _cheaper(asked: Demand, ways: Sequence[Floats]) -> Floats:
    return np.where(asked.time_ns[1] < NEVER, np.minimum(*ways), ways[0])


def best_prices(asked: Demand) -> Prices | None:
    """Return the prices of a linear programme in which layers may be divided, None if nothing takes any time.

    Layers of about the same time are taken together, at their mean: prices need not be the best ones. Memory above
    the limits may be had at `PENALTY` steps for each limit: where nothing fits the bound is far above all steps.
    """
    from scipy.optimize import linprog

    ranks, stages = len(asked.speed), len(asked.home)
    keys = np.round(2 * np.log2(asked.time_ns[0] + 1)) + 1000 * (asked.time_ns[1] < NEVER)
    _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    groups = len(sizes)

    def mean(figures: Floats) -> Floats:
        return np.bincount(group, weights=figures, minlength=groups) / sizes

    unit = asked.micro_batches * asked.time_ns[0].sum() / asked.speed.sum()
    if unit <= 0:
        return None
    # Variables by way, stage and group, then the longest rank's time and the largest share above a limit.
    width = 2 * stages * groups
    busy, held = np.zeros((ranks, 2, stages, groups)), np.zeros((ranks, 2, stages, groups))
    able = mean((asked.time_ns[1] < NEVER).astype(float)) > 0
    state, tail = mean(asked.state_bytes), mean(asked.tail_ns)
    for stage, rank in enumerate(asked.home):
        for way in range(2):
            own = mean(np.where(asked.time_ns[way] < NEVER, asked.time_ns[way], 0.0))
            busy[rank, way, stage] = (asked.micro_batches * own + tail) / asked.speed[rank] / unit
            size = state + asked.in_flight[stage] * mean(asked.saved_bytes[way])
            held[rank, way, stage] = size / asked.limit_bytes[rank]
    places = np.arange(stages) * (len(asked.before_ns) - 1) // stages
    idle = asked.before_ns[places[asked.first]][np.argsort(asked.home[asked.first])] / unit
    rows = np.concatenate([busy.reshape(ranks, width), held.reshape(ranks, width)])
    rows = np.hstack([rows, np.repeat([[-1.0, 0.0], [0.0, -1.0]], ranks, axis=0)])
    once = np.zeros((groups, width + 2))
    once[:, :width] = np.tile(np.eye(groups), 2 * stages)
    most = [None] * (stages * groups) + [None if one else 0.0 for _ in range(stages) for one in able] + [None, None]
    solved = linprog(
        np.concatenate([np.zeros(width), [1.0, PENALTY]]),
        A_ub=rows,
        b_ub=np.concatenate([-idle, np.ones(ranks)]),
        A_eq=once,
        b_eq=sizes,
        bounds=[(0.0, upper) for upper in most],
        method="highs",
    )
    if solved.status != 0:
        return None
    worth = np.maximum(0.0, -solved.ineqlin.marginals)
    total = worth[:ranks].sum()
    if total <= 0:
        return None
    return Prices(time=worth[:ranks] / total, memory=worth[ranks:] / total * unit / asked.limit_bytes)


def even_prices(ranks: int) -> Prices:
    """Return prices at which all ranks' times count alike, and memory nothing."""
    return Prices(time=np.full(ranks, 1.0 / ranks), memory=np.zeros(ranks))


def _in_flight(kind: Kind, ranks: int, micro_batches: int) -> tuple[Floats, Floats]:
    """Return the micro-batches of each stage at the fullest moment of its rank, and the most that all its stages have.

    The one in hand is included.
    """
    counts, least = np.zeros(ranks * kind.virtual), np.zeros(ranks)
    if kind.schedule in ("gpipe", "bfs"):
        return counts + micro_batches, least + micro_batches  # all forwards come before all backwards
    rows = named_moments(
        kind.schedule, ranks=ranks, micro_batches=micro_batches, virtual=kind.virtual, depth=kind.depth
    )
    for rank, row in enumerate(rows):
        moments = [_with_hand(moment) for moment in row]
        counts[list(row[0].stages)] = max(moments, key=sum)
        least[rank] = max(min(held) for held in moments)
    return counts, least


def _with_hand(moment: Moment) -> tuple[int, ...]:
    held = zip(moment.stages, moment.held, strict=True)
    return tuple(one.in_flight + (stage == moment.in_hand) for stage, one in held)
