"""One round times every layer, the loss, the seams and the unsplit step, at every micro-batch size."""

import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx, nn

from autopipe.documents.graph import Graph
from autopipe.documents.profile import Spread
from autopipe.profiler.layers import Chain, Example, Loss, Piece, Sweep
from autopipe.profiler.timer import Clock, Progress, Samples, repeat

LOSS = "loss"
SEAM = "seam"
WHOLE = "whole"

# Where a segment's duration goes: (micro-batch size, whether pieces recompute, sweep, who ran); who ran is LOSS, SEAM
# or a piece's groups.
Key = tuple[int, bool, Sweep, Hashable]


class Times:
    """The medians over rounds, without what the seam before a piece takes."""

    def __init__(self, samples: Samples, runners: Sequence[Hashable]) -> None:
        self._samples = samples
        self._runners = tuple(runners)

    def duration(self, size: int, sweep: Sweep, index: int) -> int:
        """Return the nanoseconds of a sweep of piece ``index`` (the loss: one past the last)."""
        return self._net((size, False, sweep, self._runners[index]))

    def recompute(self, size: int, index: int) -> int:
        """Return by how many nanoseconds piece ``index`` takes longer when it recomputes."""
        runner = self._runners[index]
        plain, longer = (sum(self._net((size, way, sweep, runner)) for sweep in Sweep) for way in (False, True))
        return max(0, longer - plain)

    def spread(self, size: int, sweep: Sweep, index: int) -> Spread | None:
        """Return how far that duration can be trusted, None where nothing ran."""
        key = (size, False, sweep, self._runners[index])
        spread = self._samples.spread(key)
        if spread is None:
            return None
        minimum = max(0, spread.minimum_ns - self._seam(key))
        return Spread(mad_ns=spread.mad_ns, minimum_ns=minimum, rounds=spread.rounds)

    def whole(self, size: int) -> int:
        """Return the nanoseconds of the unsplit forward and backward."""
        return self._samples.median((size, WHOLE))

    def _net(self, key: Key) -> int:
        return max(0, self._samples.median(key) - self._seam(key))

    def _seam(self, key: Key) -> int:
        size, way, sweep, runner = key
        # The forward of the loss is called as in the unsplit step: no seam was added for it.
        if runner == LOSS and sweep is Sweep.FORWARD:
            return 0
        return self._samples.median((size, way, sweep, SEAM))


def measure_times(
    chain: Chain,
    model: nn.Module,
    loss: Loss,
    examples: Mapping[int, Example],
    graph: Graph,
    clock: Clock,
    *,
    able: Collection[int],
    budget_s: float,
    progress: Progress | None = None,
) -> Times:
    """Return the times of ``chain`` at every micro-batch size.

    Every round visits every size, so that a slow spell of the machine falls on all of them alike. In a round,
    pieces of equal groups of layers share the mean of their durations: what one of a series of identical
    layers pays for all (new pages of memory, for example) stays in the sum.

    Parameters
    ----------
    able : collection of int
        The pieces that can recompute.
    """
    runners = [_groups(piece, graph) for piece in chain.pieces]
    timed, timed_runners = _with_seams(chain.pieces, runners, graph)
    timed_chain = Chain(timed, loss)
    timed_able = {
        index for index, piece in enumerate(timed) if piece.name != SEAM and chain.pieces.index(piece) in able
    }
    watcher = _TimeWatcher(clock)

    def one_round(samples: Samples) -> None:
        for size, example in examples.items():
            for recompute in (False, True):
                watcher.segments.clear()
                timed_chain.step(example, watcher, timed_able if recompute else ())
                clock.finish()
                for key, duration in _pooled(size, recompute, watcher, timed_runners).items():
                    samples.add(key, duration)
            start = clock.mark()
            loss(model(*example.args, **example.kwargs), example.target).backward()
            end = clock.mark()
            clock.finish()
            samples.add((size, WHOLE), clock.between(start, end))

    samples = repeat(one_round, budget_s=budget_s, progress=progress, label="measuring time")
    return Times(samples, [*runners, LOSS])


class _TimeWatcher:
    """Marks the clock at both ends of every segment."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.segments: list[tuple[Sweep, int, Any, Any]] = []
        self._begin: Any = None

    def before(self, sweep: Sweep, index: int, passing: dict[str, Any]) -> None:
        self._begin = self.clock.mark()

    def after(self, sweep: Sweep, index: int) -> None:
        self.segments.append((sweep, index, self._begin, self.clock.mark()))

    def made(self, index: int, values: dict[str, Any]) -> None:
        pass


def _pooled(size: int, recompute: bool, watcher: _TimeWatcher, runners: Sequence[Hashable]) -> dict[Key, int]:
    """Return the mean duration of one round by key, of seams the median."""
    durations: dict[Key, list[int]] = {}
    for sweep, index, begin, end in watcher.segments:
        durations.setdefault((size, recompute, sweep, runners[index]), []).append(watcher.clock.between(begin, end))
    return {
        key: round(statistics.median(pool) if key[3] == SEAM else statistics.fmean(pool))
        for key, pool in durations.items()
    }


def _groups(piece: Piece, graph: Graph) -> Hashable:
    return tuple(graph.layers[position].group for position in range(piece.begin, piece.end))


def _with_seams(
    pieces: Sequence[Piece], runners: Sequence[Hashable], graph: Graph
) -> tuple[list[Piece], list[Hashable]]:
    """Return the pieces with an empty one at every seam that a gradient passes, and who runs in each.

    What the empty pieces take is the cost of a seam, met in place: in a loop of its own it would be read
    several times too low, with warm instruction caches.
    """
    needs_grad = {value.name for value in graph.values if value.requires_grad}
    empty = fx.symbolic_trace(_Pass())
    timed: list[Piece] = []
    timed_runners: list[Hashable] = []
    for piece, runner in zip(pieces, runners, strict=True):
        timed.append(piece)
        timed_runners.append(runner)
        passing = tuple(name for name in piece.outputs if name in needs_grad)[:1]
        if passing:
            timed.append(replace(piece, name=SEAM, module=empty, inputs=passing, outputs=passing, released=passing))
            timed_runners.append(SEAM)
    return timed, [*timed_runners, LOSS]


class _Pass(nn.Module):
    """A piece that does nothing."""

    def forward(self, x: Any) -> tuple[Any]:
        return (x,)
