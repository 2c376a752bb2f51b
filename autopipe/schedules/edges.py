"""The edges between stages are derived from the values that cross between layers."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from autopipe.schedules.comms import Edge


class Crossing(Protocol):
    """What is needed of a value: `documents.graph.Value` and `documents.profile.ProfiledValue` both have it."""

    @property
    def producer(self) -> int:
        """The layer that makes the value."""

    @property
    def consumers(self) -> tuple[int, ...]:
        """The layers that read it."""

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient comes back for it."""

    @property
    def is_rebuilt(self) -> bool:
        """Whether stages make it again instead of receiving it."""


def stage_edges(values: Iterable[Crossing], bounds: Sequence[int]) -> tuple[Edge, ...]:
    """Return the edges of a pipeline cut at ``bounds``, ascending.

    A stage has one edge to each later stage that reads a value it makes, neighbour or not; a gradient comes
    back over it if any of these values requires one.

    Parameters
    ----------
    values : iterable of Crossing
        What crosses between layers, with layer indices in [0, L).
    bounds : sequence of int
        (0, b1, ..., L): stage s holds layers bounds[s] to bounds[s+1] - 1.
    """
    owner = stage_of(bounds)
    gradient: dict[tuple[int, int], bool] = {}
    for value in values:
        if value.is_rebuilt:
            continue
        source = owner[value.producer]
        for target in {owner[consumer] for consumer in value.consumers} - {source}:
            gradient[source, target] = gradient.get((source, target), False) or value.requires_grad
    return tuple(Edge(source, target, gradient[source, target]) for source, target in sorted(gradient))


def stage_of(bounds: Sequence[int]) -> tuple[int, ...]:
    """Return the stage of every layer under ``bounds`` = (0, b1, ..., L)."""
    return tuple(stage for stage, end in enumerate(bounds[1:]) for _ in range(bounds[stage], end))
