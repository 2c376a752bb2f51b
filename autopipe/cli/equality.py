"""Gradients of a pipeline and of the plain model are equal bit for bit, or close in reordered sums."""

from typing import NamedTuple

import torch
from torch import Tensor

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan

RELATIVE, ABSOLUTE = 1e-5, 1e-7


class Verdict(NamedTuple):
    """The names of what is equal bit for bit, of what is only close (sums in another order), and of what differs."""

    equal: tuple[str, ...]
    close: tuple[str, ...]
    different: tuple[str, ...]


class Sum(NamedTuple):
    """The gradient of parameter or tensor ``name``, added up over ``stages``, and the gradients it passes into."""

    name: str
    stages: tuple[int, ...]
    gradients: tuple[str, ...]


def compare_gradients(plain: dict[str, Tensor], piped: dict[str, Tensor], exempt: frozenset[str]) -> Verdict:
    """Return which gradients are equal bit for bit; the exempt ones may be merely close.

    A gradient that only one side has is different.
    """
    equal, close, different = [], [], []
    for name in sorted(plain.keys() | piped.keys()):
        one, other = plain.get(name), piped.get(name)
        if one is None or other is None or one.shape != other.shape:
            different.append(name)
        elif torch.equal(one, other):
            equal.append(name)
        elif name in exempt and torch.allclose(one, other, rtol=RELATIVE, atol=ABSOLUTE):
            close.append(name)
        else:
            different.append(name)
    return Verdict(tuple(equal), tuple(close), tuple(different))


def reordered_sums(plan: Plan, graph: Graph) -> tuple[Sum, ...]:
    """Return the sums that the plan's pipeline may add up in another order than the plain model.

    Such a sum is the gradient of a parameter tied over ranks, or of a tensor read on more than one stage;
    through the second pass the gradients of all parameters before that tensor.
    """
    stage_of = {layer: index for index, stage in enumerate(plan.stages) for layer in range(stage.begin, stage.end)}
    sums = []
    for name, layers in graph.tied().items():
        stages = tuple(sorted({stage_of[layer] for layer in layers}))
        if len({plan.stage_ranks[stage] for stage in stages}) > 1:
            sums.append(Sum(name=name, stages=stages, gradients=(name,)))
    for value in graph.values:
        stages = tuple(sorted({stage_of[layer] for layer in value.consumers}))
        if value.requires_grad and len(stages) > 1:
            before = (name for layer in graph.layers[: value.producer + 1] for name in layer.parameters)
            sums.append(Sum(name=value.name, stages=stages, gradients=tuple(dict.fromkeys(before))))
    return tuple(sums)
