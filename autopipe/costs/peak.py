"""The most that one micro-batch holds at once while a stage computes it."""

from collections.abc import Iterator

import numpy as np

from autopipe.costs.size import SizedProfile
from autopipe.costs.tables import Rectangles, Table
from autopipe.documents.profile import ProfiledValue


def working_peak(sized: SizedProfile, kept: Table) -> Table:
    """Return the peak of the micro-batch in hand for every interval of layers as one stage, received values left out.

    While layer k of the stage runs, the layers of the stage up to k hold what they saved, k itself its
    transient, and what passes over k waits: in the forward, values that later layers read; in the backward,
    gradients that later layers have left for earlier ones or for the stage before. The loss is the last part
    of the last stage.

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
    at_layer = np.triu(backward)
    forward_peak = np.maximum.accumulate(np.triu(forward), axis=1)
    received = _received_gradients(sized)
    peak = np.zeros_like(kept)
    highest = np.zeros(layers, dtype=np.int64)
    for layer in range(layers):
        for begin, first, held in received[layer]:
            at_layer[begin, max(first, begin) : layer] += held
            highest[begin] = at_layer[begin, begin:layer].max()
        highest = np.maximum(highest, at_layer[:, layer])
        peak[:-1, layer + 1] = np.maximum(highest, forward_peak[:, layer])
    loss_climb = max(sized.loss.transient_bytes, sized.loss.forward_transient_bytes)
    peak[:-1, -1] = np.maximum(peak[:-1, -1], kept[:-1, -1] + sized.loss.saved_bytes + loss_climb)
    return peak


def _passing_gradients(sized: SizedProfile) -> Table:
    """Return, for begin and layer, the gradients on their way from behind the layer to between the two."""
    table = Rectangles(len(sized.costs) - 1)
    for value, held in _waiting_gradients(sized):
        if value.consumers:
            table.add((0, value.producer), (value.producer + 1, value.consumers[-1] - 1), held)
    return table.table()


def _passing_values(sized: SizedProfile) -> Table:
    """Return, for begin and layer, the values made between the two for layers behind, where no layer keeps them yet.

    What the transient of a layer was measured above holds the values that its producer saved. Where that one
    recomputes they are not there any more, and count while the layer reads them.
    """
    table = Rectangles(len(sized.costs) - 1)
    for value, size, kept in zip(sized.profile.values, sized.storage_bytes, sized.kept_from, strict=True):
        if value.consumers:
            read = value.producer_saves and value.producer in sized.recompute
            last = value.consumers[-1] if read else value.consumers[-1] - 1
            table.add((0, value.producer), (value.producer + 1, last if kept is None else min(last, kept - 1)), size)
    return table.table()


def _received_gradients(sized: SizedProfile) -> list[list[tuple[int, int, int]]]:
    """Return, per layer, the gradients of received values that its backward leaves: (begin, first, bytes).

    In a stage from ``begin`` that holds the layer, they wait while the layers from ``first`` to the one
    before it run backward, until they are sent at the end.
    """
    found: list[list[tuple[int, int, int]]] = [[] for _ in sized.costs]
    for value, held in _waiting_gradients(sized):
        before = 0
        for consumer in value.consumers:
            found[consumer] += ((begin, before, held) for begin in range(value.producer + 1, consumer))
            before = consumer
    return found


def _waiting_gradients(sized: SizedProfile) -> Iterator[tuple[ProfiledValue, int]]:
    for value, held in zip(sized.profile.values, sized.waiting_gradient_bytes, strict=True):
        if held:
            yield value, held
