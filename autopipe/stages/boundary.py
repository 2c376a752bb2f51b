"""A boundary says which values travel from one stage to a later one."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from autopipe.documents.graph import Value
from autopipe.errors import InputError
from autopipe.schedules.edges import stage_of


@dataclass(frozen=True, kw_only=True)
class Route:
    """The values that stage ``source`` makes and stage ``target`` reads, in graph order: one message each way."""

    source: int
    target: int
    names: tuple[str, ...]


def check_bounds(bounds: Sequence[int], layers: int) -> tuple[int, ...]:
    """Return ``bounds`` as a tuple (0, b1, ..., layers) after checking that every stage holds a layer.

    Raises
    ------
    InputError
        If they do not start at 0, end at ``layers`` and ascend strictly.
    """
    bounds = tuple(bounds)
    ascending = all(low < high for low, high in itertools.pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != layers or not ascending:
        raise InputError(
            f"stage bounds {bounds} do not cut {layers} layers: begin with 0, end with {layers}, and ascend, "
            "so that every stage holds at least one layer."
        )
    return bounds


def routes(values: Sequence[Value], bounds: Sequence[int]) -> tuple[Route, ...]:
    """Return what travels between stages: one route per (producing stage, reading stage), ascending.

    A value that skips stages goes straight to each stage that reads it, once per reading stage; one that stages make
    again does not travel.
    """
    owner = stage_of(bounds)
    names: dict[tuple[int, int], list[str]] = {}
    for value in values:
        if value.is_rebuilt:
            continue
        source = owner[value.producer]
        for target in sorted({owner[consumer] for consumer in value.consumers} - {source}):
            names.setdefault((source, target), []).append(value.name)
    return tuple(Route(source=s, target=t, names=tuple(names[s, t])) for s, t in sorted(names))


def remade(values: Sequence[Value], bounds: Sequence[int], stage: int) -> set[str]:
    """Return the nodes of earlier stages that ``stage`` runs too, for the values that it makes again."""
    owner = stage_of(bounds)
    read = (v for v in values if owner[v.producer] < stage and any(owner[layer] == stage for layer in v.consumers))
    return {name for value in read for name in value.rebuilt_by}
