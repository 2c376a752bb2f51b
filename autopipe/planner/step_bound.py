"""A time under which no step of a problem can be, whatever the split."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopipe.costs.recompute import can_recompute
from autopipe.costs.size import SizedProfile
from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.costs.tables import Table
from autopipe.documents.profile import Cost
from autopipe.hardware.cluster import Link
from autopipe.planner.bounds import block, bottleneck, narrow
from autopipe.planner.places import windows_of
from autopipe.planner.problem import FAR, Problem
from autopipe.planner.stage_tables import freed_bytes


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A time under which no step of a problem can be, and an allowed split that has it or comes close, if any."""

    step_ns: int
    split: tuple[int, ...] | None


def tightest(problem: Problem) -> Bound | None:
    """Return the least step bound of all splits that may fit, None if none does.

    The bound of a split is the largest over its stages k of the sum of

    - what must come before the first forward of k, and what after its last backward;
    - m forwards and m backwards of k;
    - the waits of k: of the first micro-batch's way from k to the end and back, what is left when k has done
      all the forwards that 1F1B lets it do meanwhile, and of the last one's, what is left when k has done the
      backwards before it. Where k never turns from a backward to a forward these two may be the same wait,
      and the longer one counts; GPipe has nothing to do between its last forward and its first backward;
    - the tail of k.

    With equal stages and free links every stage's bound is the step of 1F1B itself. With split backwards nothing
    need come after the last weight gradient, so the larger of two sums counts: what comes before the first
    forward and all of k, and what comes before and after its m forwards and input gradients. For ranks of several
    stages, see `shared_bound_ns`.

    Notes
    -----
    Ways are sums over the layers that depend on each other, so the bound holds for branches and for frozen
    parts; hops are added where every layer feeds the next one. O(stages * L^2).
    """
    if problem.kind.virtual > 1:
        return _shared(problem)
    allowed = _least(problem)
    if problem.levels.complete:
        return allowed
    possible = _least(replace(problem, allowed=problem.possible, windows=windows_of(problem.possible, problem.layers)))
    if possible is None:
        return None
    return Bound(step_ns=possible.step_ns, split=None if allowed is None else allowed.split)


def _least(problem: Problem) -> Bound | None:
    """Return the least bound over the allowed splits."""
    pace, split = bottleneck(problem, [block(problem, problem.least_ns, stage) for stage in range(problem.stages)])
    if pace >= FAR:
        return None
    ceiling = split_bound_ns(problem, split) // problem.micro_batches
    problem = narrow(problem, ceiling, problem.least_ns)
    least, split = bottleneck(problem, stage_bounds_ns(problem))
    return Bound(step_ns=least, split=split)


def _shared(problem: Problem) -> Bound | None:
    pace, split = bottleneck(problem, [block(problem, problem.least_ns, stage) for stage in range(problem.stages)])
    if pace >= FAR or (problem.levels.complete and _lacking_bytes(problem) > 0):
        return None
    shortest = min(
        int(np.where(problem.allowed[stage], problem.least_ns[stage], FAR).min()) for stage in range(problem.stages)
    )
    fullest = problem.micro_batches * (pace + (problem.kind.virtual - 1) * shortest)
    return Bound(step_ns=max(fullest, shared_bound_ns(problem)), split=split)


def shared_bound_ns(problem: Problem) -> int:
    """Return a time under every step of ranks that hold several stages each, whatever the split.

    All ranks together compute m times all layers, and rank r at least idles until what is before its first
    stage is through; no rank is faster than its share of the rest. Nor can a step be shorter than m times the
    longest layer with what it depends on.
    """
    ways = _Ways(problem)
    speeds = [device.speed for device in problem.grid.devices]
    times = problem.intervals.times
    work = problem.micro_batches * (int(times.forward_ns[0, -1] + times.backward_ns[0, -1]) + _recompute_ns(problem))
    idle = 0.0
    for rank, speed in enumerate(speeds):
        stage = problem.stage_ranks.index(rank)
        low, high = problem.windows[stage]
        way = ways.until(stage) if problem.kind.splits else ways.before(stage)
        idle += speed * int(way[low : high + 1].min())
    tails = min(int(problem.tail_ns[stage][0, -1]) for stage in range(problem.stages)) // problem.ranks
    layers = np.diag(times.forward_ns, 1) + np.diag(times.backward_ns, 1)
    longest = problem.micro_batches * int(layers.max()) / max(speeds)
    return int(max((work + idle) / sum(speeds), longest)) + tails


def _recompute_ns(problem: Problem) -> int:
    """Return a time under what all layers together recompute for one micro-batch, by the memory of all ranks.

    At some moment every stage of a rank has at least n micro-batches in flight. So all layers together save at most
    an n-th of what all ranks have beside their state, and the best layer frees most a nanosecond.
    """
    if problem.levels.complete:
        return 0
    costs = problem.intervals.sized.costs
    rate = max(freed_bytes(cost) / max(1, cost.recompute_ns or 0) for cost in costs if can_recompute(cost))
    return int(_lacking_bytes(problem) / max(rate, 1e-9))


def _lacking_bytes(problem: Problem) -> float:
    """Return how many bytes all layers together save for each micro-batch above what all ranks have room for."""
    known = [limit for limit in problem.limits if limit is not None]
    count = min(
        max(min(held.in_flight for held in moment.held) for moment in problem.moments[rank])
        for rank in range(problem.ranks)
    )
    if len(known) < problem.ranks or count == 0:
        return 0.0
    room = (sum(known) - int(problem.intervals.memory.state[0, -1])) / count
    return max(0.0, sum(cost.saved_bytes for cost in problem.intervals.sized.costs) - room)


def any_schedule_bound_ns(
    stage_ranks: Sequence[int],
    micro_batches: int,
    stages: Sequence[StageCost],
    edges: Sequence[EdgeCost],
    limits: Sequence[int | None],
) -> int:
    """Return a time under the step of every schedule of these stages on their ranks.

    A rank computes all its stages m times. Before, the forwards that its earliest stage needs must be through;
    after its last backward (or input gradient, where parts are known and the rest may be put off) comes what
    waits for it. A rank with one stage and whole backwards also waits for its first and for its last micro-batch
    to come back, with no more forwards to do meanwhile than its memory holds.
    """
    splits = all(cost.input_grad_ns is not None and cost.weight_grad_ns is not None for cost in stages)
    begins, ends, onward = _ways_between(stage_ranks, stages, edges, splits=splits)
    bound = 0
    for rank in set(stage_ranks):
        held = [stage for stage, home in enumerate(stage_ranks) if home == rank]
        begin, end = min(begins[stage] for stage in held), min(ends[stage] for stage in held)
        forward, backward = sum(stages[s].forward_ns for s in held), sum(stages[s].backward_ns for s in held)
        tail = sum(stages[s].optimizer_ns + stages[s].replica_ns for s in held)
        busy = micro_batches * (forward + backward) + tail
        if splits:
            inputs = micro_batches * (forward + sum(stages[s].input_grad_ns or 0 for s in held))
            bound = max(bound, begin + busy, begin + inputs + end + tail)
            continue
        waits = 0
        if len(held) == 1:
            count = _held_at_most(stages[held[0]], limits[rank], micro_batches)
            first, last = (max(0, onward[held[0]] - (count - 1) * own) for own in (forward, backward))
            waits = first + last if count < micro_batches else max(first, last)
        bound = max(bound, begin + busy + waits + end)
    return bound


def _ways_between(
    stage_ranks: Sequence[int], stages: Sequence[StageCost], edges: Sequence[EdgeCost], *, splits: bool
) -> tuple[list[int], list[int], list[int]]:
    """Return, per stage, the longest way to its forward, from its backward, and from its forward to its backward."""
    begins, ends, onward = ([0] * len(stages) for _ in range(3))
    backward = [(cost.input_grad_ns or 0) if splits else cost.backward_ns for cost in stages]
    ordered = sorted(edges, key=lambda cost: cost.edge)
    for cost, forward in [*((cost, True) for cost in ordered), *((cost, False) for cost in reversed(ordered))]:
        source, target = cost.edge.source, cost.edge.target
        apart = stage_ranks[source] != stage_ranks[target]
        there, back = (
            cost.link.transfer_ns(size) if apart else 0 for size in (cost.forward_bytes, cost.backward_bytes)
        )
        if not forward and cost.edge.gradient:
            way = there + stages[target].forward_ns + onward[target] + backward[target] + back
            onward[source] = max(onward[source], way)
        elif forward:
            begins[target] = max(begins[target], begins[source] + stages[source].forward_ns + there)
            if cost.edge.gradient:
                ends[target] = max(ends[target], ends[source] + backward[source] + back)
    return begins, ends, onward


def _held_at_most(stage: StageCost, limit: int | None, micro_batches: int) -> int:
    """Return how many micro-batches of a stage its rank has memory for, the one in hand included."""
    if limit is None or stage.saved_bytes == 0:
        return micro_batches
    return min(micro_batches, max(1, (limit - stage.state_bytes - stage.working_bytes) // stage.saved_bytes))


def split_bound_ns(problem: Problem, bounds: Sequence[int]) -> int:
    """Return the step bound of the one split at ``bounds``, with one stage on each rank."""
    exact = replace(problem, windows=tuple((cut, cut) for cut in bounds))
    return max(int(own[0, 0]) for own in stage_bounds_ns(exact))


def stage_bounds_ns(problem: Problem) -> list[Table]:
    """Return, per stage and interval in its windows, the step bound that the stage gives if it is that interval."""
    ways = _Ways(problem)
    count = problem.micro_batches
    tables = []
    for stage in range(problem.stages):
        (low, high), (first, last) = problem.windows[stage : stage + 2]
        before = ways.before(stage)[low : high + 1, None]
        forward, compute = block(problem, problem.forward_ns, stage), block(problem, problem.least_ns, stage)
        own = count * compute + block(problem, problem.tail_ns, stage)
        if problem.kind.splits:
            assert problem.input_ns is not None, "schedules that split the backward need its parts"
            inputs = count * block(problem, problem.input_ns, stage) + block(problem, problem.tail_ns, stage)
            started = ways.until(stage)[low : high + 1, None]
            tables.append(np.maximum(started + own, before + inputs))
            continue
        onward = ways.onward(stage)[None, first : last + 1]
        backward = compute - forward
        others = 0 if problem.kind.schedule == "gpipe" and ways.unbroken else problem.in_flight[stage] - 1
        first_wait = np.maximum(onward - others * forward, 0)
        last_wait = np.maximum(onward - others * backward, 0)
        waits = first_wait + last_wait if problem.turns(stage) else np.maximum(first_wait, last_wait)
        tables.append(before + own + waits)
    return tables


class _Ways:
    """How long a micro-batch is on its way to a stage and back, and from the stage to the end and back.

    ``unbroken`` tells if the gradient of every layer's output goes through the layer after it.
    """

    def __init__(self, problem: Problem) -> None:
        sized = problem.intervals.sized
        self._speed = max(device.speed for device in problem.grid.devices)
        there, self._back = Seam(sized, trained=False), Seam(sized, trained=True)
        self.unbroken = self._back.unbroken
        home = problem.stage_ranks
        links = [
            problem.grid.link(home[stage - 1], home[stage]) if home[stage - 1] != home[stage] else Link()
            for stage in range(1, problem.stages)
        ]
        self._there = [there.hop_ns(link) for link in links]
        self._hops = [hop + self._back.hop_ns(link) for link, hop in zip(links, self._there, strict=True)]
        splits = problem.kind.splits
        back = [(c.input_grad_ns or 0) if splits else c.backward_ns for c in sized.costs]
        self._until = longest_before([c.forward_ns for c in sized.costs], there.feeds)
        self._before = self._until + longest_before(back, self._back.feeds)
        self._onward = _longest_onward(sized.costs, sized.loss, self._back)

    def until(self, stage: int) -> Table:
        """Return, per boundary before the stage, the least time before its first F."""
        return self._scaled(self._until) + _least_hops(self._there[:stage])

    def before(self, stage: int) -> Table:
        """Return, per boundary before the stage, the least time before its first F and after its last B, or I."""
        return self._scaled(self._before) + _least_hops(self._hops[:stage])

    def onward(self, stage: int) -> Table:
        """Return, per boundary behind the stage, the least time from a forward of the stage to its backward."""
        way = self._scaled(self._onward)
        if not self.unbroken:
            return way
        return way + _least_hops([hop[::-1] for hop in reversed(self._hops[stage:])])[::-1]

    def _scaled(self, table: Table) -> Table:
        return table if self._speed == 1.0 else np.floor(table / self._speed).astype(np.int64)


class Seam:
    """What passes between neighbouring layers: all values, or only those that bring a gradient back."""

    def __init__(self, sized: SizedProfile, *, trained: bool) -> None:
        layers = len(sized.costs)
        self.feeds: list[list[int]] = [[] for _ in range(layers)]
        self.joined = np.zeros(layers + 1, dtype=bool)
        self._bytes = [0] * (layers + 1)
        for value, size in zip(sized.profile.values, sized.value_bytes, strict=True):
            if value.is_rebuilt or (trained and not value.requires_grad):
                continue
            for consumer in value.consumers:
                self.feeds[consumer].append(value.producer)
            if value.consumers and value.consumers[0] == value.producer + 1:
                self.joined[value.producer + 1] = True
                self._bytes[value.producer + 1] += size
        self.unbroken = bool(self.joined[1:layers].all())

    def hop_ns(self, link: Link) -> Table:
        """Return the least hop through each boundary, 0 unless every layer feeds the next."""
        if not self.unbroken:
            return np.zeros(len(self._bytes), dtype=np.int64)
        return np.array([link.transfer_ns(size) for size in self._bytes], dtype=np.int64)


def longest_before(durations: Sequence[int], feeds: Sequence[Sequence[int]]) -> Table:
    """Return, per boundary, the longest chain of layers that the layer behind it depends on."""
    ways = [0] * (len(durations) + 1)
    for layer, producers in enumerate(feeds):
        ways[layer] = max((ways[producer] + durations[producer] for producer in producers), default=0)
    return np.array(ways, dtype=np.int64)


def _longest_onward(costs: Sequence[Cost], loss: Cost, seam: Seam) -> Table:
    """Return, per boundary, the longest chain forward from it and back to it, 0 where no gradient crosses it."""
    after = [0] * len(costs)
    after[-1] = loss.forward_ns + loss.backward_ns
    through = [0] * (len(costs) + 1)
    for layer in reversed(range(len(costs))):
        through[layer] = after[layer] + costs[layer].forward_ns + costs[layer].backward_ns
        for producer in seam.feeds[layer]:
            after[producer] = max(after[producer], through[layer])
    return np.where(seam.joined, np.array(through, dtype=np.int64), 0)


def _least_hops(hops: Sequence[Table]) -> Table:
    """Return, per boundary, the least sum of hops through as many boundaries up to it, the last one being it."""
    if not hops:
        return np.zeros(1, dtype=np.int64)
    least = hops[0]
    for count, hop in enumerate(hops[1:], start=2):
        row = np.zeros_like(hop)
        row[count:] = np.minimum.accumulate(least[count - 1 :])[:-1] + hop[count:]
        least = row
    return least
