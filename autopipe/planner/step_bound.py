"""A time under which no step of a problem can be, whatever the split."""

from collections.abc import Sequence

import numpy as np

from autopipe.costs.tables import Table
from autopipe.documents.profile import Cost
from autopipe.hardware.cluster import Link
from autopipe.planner.bounds import FAR
from autopipe.planner.problem import Problem


def tightest(problem: Problem) -> tuple[int, tuple[int, ...]] | None:
    """Return the least step bound of all allowed splits and a split that has it, None if nothing is allowed.

    The bound of a split is the largest over its stages k of the sum of

    - what must come before the first forward of k, and what after its last backward;
    - m forwards and m backwards of k;
    - the waits of k: of the first micro-batch's way from k to the end and back, what is left when k has done
      all the forwards that 1F1B lets it do meanwhile, and of the last one's, what is left when k has done the
      backwards before it. Where k never turns from a backward to a forward these two may be the same wait,
      and the longer one counts; GPipe has nothing to do between its last forward and its first backward;
    - the optimizer of k.

    With equal stages and free links every stage's bound is the step of 1F1B itself.

    Notes
    -----
    Ways are sums over the layers that depend on each other, so the bound holds for branches and for frozen
    parts; hops are added where every layer feeds the next one. O(stages * L^2).
    """
    highest = np.full(problem.layers + 1, FAR)
    highest[problem.layers] = 0
    choices: list[Table] = []
    for own in reversed(stage_bounds_ns(problem)):
        stage = problem.stages - 1 - len(choices)
        reach = np.where(problem.allowed[stage], np.maximum(own, highest[None, :]), FAR)
        choices.append(reach.argmin(axis=1))
        highest = reach.min(axis=1)
    if highest[0] >= FAR:
        return None
    bounds = [0]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
    return int(highest[0]), tuple(bounds)


def split_bound_ns(problem: Problem, bounds: Sequence[int]) -> int:
    """Return the step bound of the one split at ``bounds``."""
    tables = stage_bounds_ns(problem)
    return max(int(own[bounds[stage], bounds[stage + 1]]) for stage, own in enumerate(tables))


def stage_bounds_ns(problem: Problem) -> list[Table]:
    """Return, per stage and interval, the step bound that the stage gives if it is that interval."""
    ways = _Ways(problem)
    tables = []
    for stage in range(problem.stages):
        forward = problem.forward_ns[stage]
        backward = problem.compute_ns[stage] - forward
        onward = ways.onward(stage)[None, :]
        others = 0 if problem.schedule == "gpipe" and ways.unbroken else problem.in_flight[stage] - 1
        first = np.maximum(onward - others * forward, 0)
        last = np.maximum(onward - others * backward, 0)
        waits = first + last if problem.turns(stage) else np.maximum(first, last)
        own = problem.micro_batches * problem.compute_ns[stage] + problem.optimizer_ns[stage]
        tables.append(ways.before(stage)[:, None] + own + waits)
    return tables


class _Ways:
    """How long a micro-batch is on its way to a stage and back, and from the stage to the end and back.

    ``unbroken`` tells if the gradient of every layer's output goes through the layer after it.
    """

    def __init__(self, problem: Problem) -> None:
        sized = problem.intervals.sized
        self._speed = max(device.speed for device in problem.cluster.devices[: problem.stages])
        there, self._back = _Seam(problem, trained=False), _Seam(problem, trained=True)
        self.unbroken = self._back.unbroken
        links = [problem.cluster.link(stage - 1, stage) for stage in range(1, problem.stages)]
        self._hops = [there.hop_ns(link) + self._back.hop_ns(link) for link in links]
        self._before = _longest_before([c.forward_ns for c in sized.costs], there.feeds)
        self._before += _longest_before([c.backward_ns for c in sized.costs], self._back.feeds)
        self._onward = _longest_onward(sized.costs, sized.loss, self._back)

    def before(self, stage: int) -> Table:
        """Return, per boundary before the stage, the least time before its first F and after its last B."""
        return self._scaled(self._before) + _least_hops(self._hops[:stage])

    def onward(self, stage: int) -> Table:
        """Return, per boundary behind the stage, the least time from a forward of the stage to its backward."""
        way = self._scaled(self._onward)
        if not self.unbroken:
            return way
        return way + _least_hops([hop[::-1] for hop in reversed(self._hops[stage:])])[::-1]

    def _scaled(self, table: Table) -> Table:
        return table if self._speed == 1.0 else np.floor(table / self._speed).astype(np.int64)


class _Seam:
    """What passes between neighbouring layers: all values, or only those that bring a gradient back."""

    def __init__(self, problem: Problem, *, trained: bool) -> None:
        sized = problem.intervals.sized
        layers = len(sized.costs)
        self.feeds: list[list[int]] = [[] for _ in range(layers)]
        self.joined = np.zeros(layers + 1, dtype=bool)
        self._bytes = [0] * (layers + 1)
        for value, size in zip(sized.profile.values, sized.value_bytes, strict=True):
            if trained and not value.requires_grad:
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


def _longest_before(durations: Sequence[int], feeds: Sequence[Sequence[int]]) -> Table:
    """Return, per boundary, the longest chain of layers that the layer behind it depends on."""
    ways = [0] * (len(durations) + 1)
    for layer, producers in enumerate(feeds):
        ways[layer] = max((ways[producer] + durations[producer] for producer in producers), default=0)
    return np.array(ways, dtype=np.int64)


def _longest_onward(costs: Sequence[Cost], loss: Cost, seam: _Seam) -> Table:
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
