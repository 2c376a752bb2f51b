"""A step's request is divided among replicas that one process holds: each gets its part of the batch."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autopipe.executor.microbatch import Inputs, cut
from autopipe.executor.request import MicroBatches, Request
from autopipe.executor.sampler import replica_sizes


def divide(request: Request, inputs: Inputs, replicas: int) -> tuple[Request, ...]:
    """Return what each replica is asked for: as equal parts of the batch as can be, larger ones first.

    What is cut into `MicroBatches` already is divided between them.
    """
    pieces = inputs.sizes(request.args, request.kwargs, 1, may_be_empty=True)
    is_cut = any(isinstance(value, MicroBatches) for value in (*request.args, *request.kwargs.values()))
    counts = replica_sizes(len(pieces), replicas)
    ends = tuple(itertools.accumulate(counts, initial=0))
    samples = tuple(sum(pieces[begin:end]) for begin, end in itertools.pairwise(ends))
    sizes = samples if is_cut else replica_sizes(sum(pieces), replicas)

    def parts(tree: Any, sizes: Sequence[int], dim: int) -> tuple[Any, ...]:
        if isinstance(tree, MicroBatches):
            return tuple(MicroBatches(tree.items[begin:end]) for begin, end in itertools.pairwise(ends))
        return cut(tree, tuple(sizes), dim)

    rows = zip(
        inputs.cut(request.args, request.kwargs, sizes, cutter=parts),
        inputs.cut_target(request.target, sizes, cutter=parts),
        inputs.cut_target(request.weight, sizes, cutter=parts),
        strict=True,
    )
    return tuple(
        replace(request, args=args, kwargs=kwargs, target=target, weight=weight)
        for (args, kwargs), target, weight in rows
    )
