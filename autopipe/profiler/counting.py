"""The work of a measured model is counted in one further step: what its operators ask of any device, layer by layer."""

from collections import Counter
from typing import Any

from autopipe.documents.graph import Graph
from autopipe.documents.work import LayerWork, Sweep
from autopipe.profiler import layers
from autopipe.profiler.folding import likeness
from autopipe.profiler.layers import Chain, Example
from autopipe.profiler.work import Collected, WorkCounter, merged

_SWEEPS = {layers.Sweep.FORWARD: Sweep.FORWARD, layers.Sweep.BACKWARD: Sweep.BACKWARD}


def count_work(chain: Chain, example: Example, graph: Graph, size: int) -> tuple[LayerWork, ...]:
    """Return the work of one layer of each kind, forward and backward, from a step on ``example``.

    Parameters
    ----------
    size : int
        The samples of ``example``.
    """
    counts = _Counts()
    with WorkCounter(lambda: counts.current):
        chain.step(example, counts)
    begins = [*(piece.begin for piece in chain.pieces), len(graph.layers)]
    return tuple(
        LayerWork(layer=begins[index], sweep=_SWEEPS[sweep], micro_batch=size, operators=merged(collected))
        for index in sorted(set(likeness(chain.pieces, graph)))
        for sweep in _SWEEPS
        if (collected := counts.segments.get((sweep, index)))
    )


class _Counts:
    """Has the work of every segment noted apart; between segments, nothing is."""

    def __init__(self) -> None:
        self.segments: dict[tuple[layers.Sweep, int], Collected] = {}
        self.current: Collected | None = None

    def before(self, sweep: layers.Sweep, index: int, passing: dict[str, Any], received: dict[str, Any]) -> None:
        self.current = self.segments[sweep, index] = Counter()

    def after(self, sweep: layers.Sweep, index: int) -> None:
        self.current = None

    def made(self, index: int, values: dict[str, Any]) -> None:
        pass
