"""The most that one micro-batch holds at once while a stage computes it."""

from collections.abc import Iterator, Sequence

import numpy as np

from autopipe.costs.size import SizedProfile
from autopipe.costs.tables import Rectangles, Table
from autopipe.costs.time import shared_pairs
from autopipe.documents.profile import Cost, ProfiledValue

NOWHERE = -(1 << 60)


def working_peaks(sized: SizedProfile, kept: Table) -> tuple[Table, Table]:
    """Return the peak of the micro-batch in hand for every interval of layers as one stage, and that of its forward.

    Received values are left out. While layer k of the stage runs, the layers of the stage up to k hold what they
    saved, k itself its transient, and what passes over k waits: in the forward, values that later layers read; in
    the backward, gradients that later layers have left for earlier ones or for the stage before, and those that the
    stage has received, whose buffers are free again when its backward is over. The loss is the last part of the last
    stage.

    Parameters
    ----------
    kept : Table
        Shape (L + 1, L + 1): what the layers of each interval save, the loss left out.

    Notes
    -----
    O(L^2), and O(L) more for every layer that a value passes over.
    """
    layers = len(sized.costs)
    backward = kept[:-1, 1:] + np.array([cost.transient_bytes for cost in sized.costs], dtype=np.int64)
    backward += _passing_gradients(sized)
    forward = kept[:-1, 1:] + np.array([cost.forward_transient_bytes for cost in sized.costs], dtype=np.int64)
    forward += _passing_values(sized)
    at_layer = np.where(np.triu(np.ones((layers, layers), dtype=bool)), backward, NOWHERE)
    forward_peak = np.maximum.accumulate(np.triu(forward), axis=1)
    ending = np.array([_ending_climb(cost) for cost in sized.costs], dtype=np.int64)
    late = _late_gradients(sized)
    received = _received_gradients(sized)
    peak, ahead = np.zeros_like(kept), np.zeros_like(kept)
    ahead[:-1, 1:] = forward_peak
    highest = np.full(layers, NOWHERE, dtype=np.int64)
    for layer in range(layers):
        for begin, first, held in late[layer]:
            at_layer[begin, max(first, begin) : layer] += held
            highest[begin] = at_layer[begin, begin:layer].max()
        climbs = at_layer[:, : layer + 1]
        if received[layer]:
            climbs = climbs.copy()
            climbs[:, layer] += ending[layer]
        backward_peak = _with_received(climbs, highest, received[layer])
        peak[:-1, layer + 1] = np.maximum(backward_peak, forward_peak[:, layer])
        highest = np.maximum(highest, at_layer[:, layer])
    loss_climb = max(sized.loss.transient_bytes, sized.loss.forward_transient_bytes)
    with_loss = kept[:-1, -1] + sized.loss.saved_bytes
    peak[:-1, -1] = np.maximum(peak[:-1, -1], with_loss + loss_climb)
    ahead[:-1, -1] = np.maximum(ahead[:-1, -1], with_loss + sized.loss.forward_transient_bytes)
    return peak, ahead


def _ending_climb(cost: Cost) -> int:
    """Return how much higher the backward of a layer climbs if the gradients that its stage received live on."""
    return 0 if cost.ending_transient_bytes is None else max(0, cost.ending_transient_bytes - cost.transient_bytes)


def _passing_gradients(sized: SizedProfile) -> Table:
    """Return, for begin and layer, the gradients on their way from behind the layer to between the two."""
    table = Rectangles(len(sized.costs) - 1)
    for value, held in _waiting_gradients(sized):
        if value.consumers:
            table.add((0, value.producer), (value.producer + 1, value.consumers[-1] - 1), held)
    return table.table()


def _passing_values(sized: SizedProfile) -> Table:
    """Return, for begin and layer, the values made there or between for layers behind, where no layer keeps them yet.

    What the transient of a layer was measured above holds the values that its producer saved. Where that one
    recomputes they are not there any more, and count while the layer reads them.
    """
    table = Rectangles(len(sized.costs) - 1)
    for value, size, kept in zip(sized.profile.values, sized.storage_bytes, sized.kept_from, strict=True):
        if value.consumers:
            read = value.producer_saves and value.producer in sized.recompute
            last = value.consumers[-1] if read else value.consumers[-1] - 1
            table.add((0, value.producer), (value.producer, last if kept is None else min(last, kept - 1)), size)
    return table.table()


def _received_gradients(sized: SizedProfile) -> list[list[tuple[int, int]]]:
    """Return, per layer, the gradients that a stage which ends with it receives: (layer that made the value, bytes)."""
    found: list[list[tuple[int, int]]] = [[] for _ in sized.costs]
    for value, size in zip(sized.profile.values, sized.value_bytes, strict=True):
        if value.requires_grad and value.consumers:
            for layer in range(value.producer, value.consumers[-1]):
                found[layer].append((value.producer, size))
    return found


def _with_received(at_layer: Table, highest: Table, received: Sequence[tuple[int, int]]) -> Table:
    """Return the peak of the backward of every stage that ends with a layer.

    A gradient that the stage has received is part of what the layer that made the value climbs to, and waits while
    the layers before that one run. What the last layer climbs to knows that it waits in its own backward too.

    Parameters
    ----------
    at_layer : Table
        Shape (L, k): the climbs of the k layers up to the last one, by begin.
    highest : Table
        Shape (L,): the highest climb of all but the last one.
    """
    end = at_layer.shape[1]
    first = min((producer for producer, _ in received), default=end - 1)
    if first == end - 1:
        return np.maximum(highest + sum(size for _, size in received), at_layer[:, -1])
    waiting = np.zeros(end, dtype=np.int64)
    for producer, size in received:
        waiting[:producer] += size
    return (at_layer + waiting).max(axis=1)


def _late_gradients(sized: SizedProfile) -> list[list[tuple[int, int, int]]]:
    """Return, per layer, the gradients that its backward leaves for long: (begin, first, bytes).

    In a stage from ``begin`` that holds the layer, they wait while the layers from ``first`` to the one
    before it run backward: those of received values until they are sent at the end, and that of a parameter
    which an earlier layer reads too until autograd adds up both parts.
    """
    found: list[list[tuple[int, int, int]]] = [[] for _ in sized.costs]
    for value, held in _waiting_gradients(sized):
        before = 0
        for consumer in value.consumers:
            found[consumer] += ((begin, before, held) for begin in range(value.producer + 1, consumer))
            before = consumer
    for pair in shared_pairs(sized.profile.shared):
        if sized.profile.layers[pair.first].gradient_bytes >= pair.bytes:
            found[pair.second] += ((begin, pair.first, pair.bytes) for begin in range(pair.first + 1))
    return found


def _waiting_gradients(sized: SizedProfile) -> Iterator[tuple[ProfiledValue, int]]:
    for value, held in zip(sized.profile.values, sized.waiting_gradient_bytes, strict=True):
        if held:
            yield value, held
