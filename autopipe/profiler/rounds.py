"""One round times every layer, the loss, the seams and the unsplit step, at every micro-batch size."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from autopipe.documents.graph import Graph
from autopipe.documents.profile import Spread
from autopipe.profiler.joined import EMPTY, joined_step
from autopipe.profiler.layers import Chain, Example, Loss, Piece, Sweep
from autopipe.profiler.timer import Clock, Samples

LOSS = "loss"
SEAM = "seam"
WHOLE = "whole"
HOST = "host"


class Way(StrEnum):
    """How the pieces of a model are run to time them."""

    PLAIN = "plain"
    RECOMPUTE = "recompute"
    SPLIT = "split"


def pool(size: int, way: Way, sweep: Sweep, runner: str) -> str:
    """Return the name of the pool of one duration; ``runner`` is LOSS, SEAM or the groups of a piece's layers."""
    return f"{size} {way} {sweep} {runner}"


class Times:
    """The medians over rounds, without what the seam beside a piece takes."""

    def __init__(self, samples: Samples, runners: Sequence[str]) -> None:
        self._samples = samples
        self._runners = tuple(runners)

    def duration(self, size: int, sweep: Sweep, index: int) -> int:
        """Return the nanoseconds of a sweep of piece ``index`` (the loss: one past the last)."""
        way = Way.PLAIN if sweep in (Sweep.FORWARD, Sweep.BACKWARD) else Way.SPLIT
        return self._net(size, way, sweep, index)

    def recompute(self, size: int, index: int) -> int:
        """Return by how many nanoseconds piece ``index`` takes longer when it recomputes."""
        plain, longer = (
            sum(self._net(size, way, sweep, index) for sweep in (Sweep.FORWARD, Sweep.BACKWARD))
            for way in (Way.PLAIN, Way.RECOMPUTE)
        )
        return max(0, longer - plain)

    def spread(self, size: int, sweep: Sweep, index: int) -> Spread | None:
        """Return how far the duration of a forward or backward can be trusted, None where nothing ran."""
        spread = self._samples.spread(pool(size, Way.PLAIN, sweep, self._runners[index]))
        if spread is None:
            return None
        minimum = max(0, spread.minimum_ns - self._seam(size, Way.PLAIN, sweep, index))
        return Spread(mad_ns=spread.mad_ns, minimum_ns=minimum, rounds=spread.rounds)

    def host(self, size: int, index: int) -> int | None:
        """Return how long the host took to issue a forward and backward; None where it does the work itself."""
        sweeps = Sweep.FORWARD, Sweep.BACKWARD
        keys = [f"{HOST} {pool(size, Way.PLAIN, sweep, self._runners[index])}" for sweep in sweeps]
        return sum(map(self._samples.median, keys)) if any(key in self._samples.pools for key in keys) else None

    def whole(self, size: int) -> int:
        """Return the nanoseconds of the unsplit forward and backward."""
        return self._samples.median(f"{size} {WHOLE}")

    def _net(self, size: int, way: Way, sweep: Sweep, index: int) -> int:
        gross = self._samples.median(pool(size, way, sweep, self._runners[index]))
        return max(0, gross - self._seam(size, way, sweep, index))

    def _seam(self, size: int, way: Way, sweep: Sweep, index: int) -> int:
        # The loss is called as in the unsplit step, and its backward is entered as there: nothing was added.
        if self._runners[index] == LOSS:
            return 0
        return self._samples.median(pool(size, way, sweep, SEAM))


class Rounds:
    """Times a chain at every micro-batch size, round by round.

    Every round visits every size, so that a slow spell of the machine falls on all of them alike. In a round,
    pieces of equal groups of layers share the mean of their durations: what one of a series of identical
    layers pays for all (new pages of memory, for example) stays in the sum.

    Parameters
    ----------
    again : sequence of Piece
        The same pieces, those recomputing that can.
    """

    def __init__(
        self,
        chain: Chain,
        model: nn.Module,
        loss: Loss,
        examples: Mapping[int, Example],
        graph: Graph,
        clock: Clock,
        *,
        again: Sequence[Piece],
    ) -> None:
        self._pieces = {Way.PLAIN: chain.pieces, Way.RECOMPUTE: again}
        self._model, self._loss = model, loss
        self._examples, self._clock = examples, clock
        self.runners = [*_runners(chain.pieces, graph), LOSS]
        timed, self._timed_runners = _with_seams(chain.pieces, self.runners, graph)
        self._chain = Chain(timed, loss)

    def times(self, samples: Samples) -> Times:
        """Return what ``samples`` say."""
        return Times(samples, self.runners)

    def one_round(self, samples: Samples) -> None:
        """Add one round to ``samples``: the clock is finished once, when all has been issued."""
        found: list[tuple[str, list[tuple[Any, Any]]]] = []
        for size, example in self._examples.items():
            found += self._joined(size, Way.RECOMPUTE, example)
            found += self._split(size, example)
            # What comes first after another way of running meets colder caches: the two that are compared take turns.
            if samples.rounds % 2:
                found += self._joined(size, Way.PLAIN, example) + self._whole(size, example)
            else:
                found += self._whole(size, example) + self._joined(size, Way.PLAIN, example)
        self._clock.finish()
        pools: dict[str, list[int]] = {}
        for key, spans in found:
            pools.setdefault(key, []).append(sum(self._clock.between(begin, end) for begin, end in spans))
            issued = [self._clock.host_between(begin, end) or 0 for begin, end in spans]
            if any(issued):
                pools.setdefault(f"{HOST} {key}", []).append(sum(issued))
        for key, durations in pools.items():
            is_seam = key.endswith(SEAM)
            samples.add(key, round(statistics.median(durations) if is_seam else statistics.fmean(durations)))

    def _whole(self, size: int, example: Example) -> list[tuple[str, list[tuple[Any, Any]]]]:
        self._clock.head_start()
        begin = self._clock.mark()
        torch.clear_autocast_cache()
        self._loss(self._model(*example.args, **example.kwargs), example.target).backward()
        return [(f"{size} {WHOLE}", [(begin, self._clock.mark())])]

    def _joined(self, size: int, way: Way, example: Example) -> list[tuple[str, list[tuple[Any, Any]]]]:
        self._clock.head_start()
        marks = joined_step(self._pieces[way], self._loss, example, self._clock)
        spans: dict[tuple[Sweep, int], list[tuple[Any, Any]]] = {}
        for sweep, index, begin, end in marks.spans:
            spans.setdefault((sweep, index), []).append((begin, end))
        found = [(pool(size, way, sweep, self.runners[index]), both) for (sweep, index), both in spans.items()]
        found += [(pool(size, way, sweep, SEAM), [(begin, end)]) for sweep, begin, end in marks.seams]
        return found

    def _split(self, size: int, example: Example) -> list[tuple[str, list[tuple[Any, Any]]]]:
        watcher = _TimeWatcher(self._clock)
        self._clock.head_start()
        self._chain.step(example, watcher, split=True)
        return [
            (pool(size, Way.SPLIT, sweep, self._timed_runners[index]), [(begin, end)])
            for sweep, index, begin, end in watcher.segments
            if sweep in (Sweep.INPUT_GRAD, Sweep.WEIGHT_GRAD)
        ]


class _TimeWatcher:
    """Marks the clock at both ends of every segment."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.segments: list[tuple[Sweep, int, Any, Any]] = []
        self._begin: Any = None

    def before(self, sweep: Sweep, index: int, passing: dict[str, Any], received: dict[str, Any]) -> None:
        self._begin = self.clock.mark()

    def after(self, sweep: Sweep, index: int) -> None:
        self.segments.append((sweep, index, self._begin, self.clock.mark()))

    def made(self, index: int, values: dict[str, Any]) -> None:
        pass


def _runners(pieces: Sequence[Piece], graph: Graph) -> list[str]:
    """Return the groups of every piece's layers; those that send no gradient back have a shorter backward."""
    needs_grad = {value.name for value in graph.values if value.requires_grad}
    runners = []
    for piece in pieces:
        groups = "+".join(str(graph.layers[position].group) for position in range(piece.begin, piece.end))
        runners.append(groups if needs_grad.intersection(piece.inputs) else f"{groups} without input gradients")
    return runners


def _with_seams(pieces: Sequence[Piece], runners: Sequence[str], graph: Graph) -> tuple[list[Piece], list[str]]:
    """Return the pieces with an empty one at every seam that a gradient passes, and who runs in each.

    What the parts of an empty piece's backward take is the cost of a seam, met in place: in a loop of its own
    it would be read several times too low, with warm instruction caches.
    """
    needs_grad = {value.name for value in graph.values if value.requires_grad}
    timed: list[Piece] = []
    timed_runners: list[str] = []
    for piece, runner in zip(pieces, runners, strict=False):
        timed.append(piece)
        timed_runners.append(runner)
        passing = tuple(name for name in piece.outputs if name in needs_grad)[:1]
        if passing:
            timed.append(replace(piece, name=SEAM, module=EMPTY, inputs=passing, outputs=passing, released=passing))
            timed_runners.append(SEAM)
    return timed, [*timed_runners, LOSS]
