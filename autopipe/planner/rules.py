"""How other systems split a row of layers, from their published descriptions: what a plan is compared with.

A rule gets one weight a layer (its time, or its parameters) and returns the bounds (0, b1, ..., L) of the stages.
None of them looks at what crosses a boundary, or at branches.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from autopipe.errors import InputError

Bounds = tuple[int, ...]


def equal_count(weights: Sequence[float], stages: int) -> Bounds:
    """Return stages of as many layers each, the first ones one more where that does not come out even.

    Megatron-LM and torchtitan split transformer blocks so, whatever they weigh.
    """
    _check(weights, stages)
    least, more = divmod(len(weights), stages)
    return tuple(stage * least + min(stage, more) for stage in range(stages + 1))


def least_bottleneck(weights: Sequence[float], stages: int) -> Bounds:
    """Return the stages whose heaviest is the lightest possible, each filled as far as that weight allows.

    DeepSpeed's ``partition_balanced``: a probe fills one stage after the other up to a limit, and the limit is
    searched (Rajbhandari et al.; the probe is Han, Narahari and Choi's, "Mapping a chain task to chained processors",
    1992). It splits by parameters unless it is told to split otherwise.
    """
    _check(weights, stages)
    sums = [0.0, *accumulate(weights)]
    low, high = max(max(weights), sums[-1] / stages), sums[-1]
    for _ in range(60):
        middle = (low + high) / 2
        if _probe(sums, stages, middle) is None:
            low = middle
        else:
            high = middle
    found = _probe(sums, stages, high)
    assert found is not None, "one stage holds everything"
    return found


def block_partition(weights: Sequence[float], stages: int) -> Bounds:
    """Return stages that differ by no more than the heaviest layer, moved one layer at a time.

    torchgpipe's balancer: from equal counts, the lightest stage takes a layer from its neighbour on the side of the
    heaviest, until the heaviest is at most one (normalised) layer above the lightest (Barany and Grinberg, "Block
    partitions of sequences", 2015).
    """
    _check(weights, stages)
    lowest, spread = min(weights), max(weights) - min(weights)
    normal = [(weight - lowest) / spread if spread else 0.0 for weight in weights]
    sums = [0.0, *accumulate(normal)]
    count = len(weights) // stages
    bounds = [*(stage * count for stage in range(stages)), len(weights)]
    seen = set()
    while tuple(bounds) not in seen:
        seen.add(tuple(bounds))
        sizes = [sums[bounds[stage + 1]] - sums[bounds[stage]] for stage in range(stages)]
        heaviest = max(range(stages), key=lambda stage: sizes[stage])
        lightest = min(range(stages), key=lambda stage: (sizes[stage], abs(stage - heaviest)))
        if sizes[heaviest] <= sizes[lightest] + 1:
            break
        edge, step = (lightest, -1) if heaviest < lightest else (lightest + 1, 1)
        if bounds[edge] + step in (bounds[edge - 1], bounds[edge + 1]):
            break
        bounds[edge] += step
    return tuple(bounds)


def _probe(sums: Sequence[float], stages: int, limit: float) -> Bounds | None:
    """Return the stages when each is filled up to ``limit`` and leaves one layer for each that follows."""
    layers = len(sums) - 1
    bounds = [0]
    for stage in range(stages):
        end = bounds[-1] + 1
        while end < layers - (stages - 1 - stage) and sums[end + 1] - sums[bounds[-1]] <= limit:
            end += 1
        bounds.append(end)
    fits = all(sums[end] - sums[begin] <= limit for begin, end in pairwise(bounds))
    return tuple(bounds) if fits and bounds[-1] == layers else None


def _check(weights: Sequence[float], stages: int) -> None:
    if not 1 <= stages <= len(weights):
        raise InputError(f"{len(weights)} layers do not make {stages} stages: ask for 1 to {len(weights)}.")
