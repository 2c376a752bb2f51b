"""The time that any interval of layers takes, and the bytes that cross its ends."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from autopipe.costs.size import SizedProfile
from autopipe.costs.tables import Rectangles, Table, between, prefix
from autopipe.documents.profile import ProfiledLayer, ProfiledValue, SharedParameter
from autopipe.hardware.cluster import Link


@dataclass(frozen=True, kw_only=True)
class IntervalTimes:
    """Tables of shape (L + 1, L + 1): entry [begin, end] speaks of layers begin to end - 1 as one stage.

    Attributes
    ----------
    forward_ns, backward_ns : Table
        For one micro-batch on the profiled device; the loss belongs to every interval that ends with the
        last layer.
    input_grad_ns, weight_grad_ns : Table or None
        The backward's two parts; None if a layer's were not measured. An interval that sends no gradient
        back has no first part: the executor then defers its whole backward.
    optimizer_ns, gradient_bytes : Table
        Once per step; a parameter that several layers of the interval share is updated once.
    input_bytes, output_bytes : Table
        Values that enter from earlier layers and that later layers read, each once.
    input_gradient_bytes : Table
        The part of what enters whose gradients travel back.
    inputs, input_gradients : Table
        How many values enter, and how many of their gradients travel back.
    """

    forward_ns: Table
    backward_ns: Table
    input_grad_ns: Table | None
    weight_grad_ns: Table | None
    optimizer_ns: Table
    gradient_bytes: Table
    input_bytes: Table
    output_bytes: Table
    input_gradient_bytes: Table
    inputs: Table
    input_gradients: Table

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return self.forward_ns.shape[0] - 1


def interval_times(sized: SizedProfile) -> IntervalTimes:
    """Return the times and crossing bytes of every interval at one micro-batch size.

    Notes
    -----
    Time and memory are O(L^2) and one constant-time update per value and consumer.
    """
    forward = between(prefix(cost.forward_ns for cost in sized.costs))
    backward = between(prefix(cost.backward_ns for cost in sized.costs))
    forward[:, -1] += sized.loss.forward_ns
    backward[:, -1] += sized.loss.backward_ns
    layers = sized.profile.layers
    optimizer = between(prefix(layer.optimizer_ns or 0 for layer in layers))
    for pair in shared_pairs(sized.profile.shared):
        optimizer[: pair.first + 1, pair.second + 1 :] -= _shared_update_ns(layers[pair.second], pair.bytes)
    values = zip(sized.profile.values, sized.value_bytes, strict=True)
    every = tuple((value, size) for value, size in values if not value.is_rebuilt)
    trained = tuple((value, size) for value, size in every if value.requires_grad)
    input_gradients = entering(((value, 1) for value, _ in trained), len(layers))
    input_grad, weight_grad = _backward_parts(sized, backward, input_gradients)
    return IntervalTimes(
        forward_ns=forward,
        backward_ns=backward,
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        optimizer_ns=np.maximum(optimizer, 0),
        gradient_bytes=_gradient_bytes(sized),
        input_bytes=entering(every, len(layers)),
        output_bytes=leaving(every, len(layers)),
        input_gradient_bytes=entering(trained, len(layers)),
        inputs=entering(((value, 1) for value, _ in every), len(layers)),
        input_gradients=input_gradients,
    )


def _gradient_bytes(sized: SizedProfile) -> Table:
    layers = sized.profile.layers
    held = between(prefix(layer.gradient_bytes for layer in layers))
    for pair in shared_pairs(sized.profile.shared):
        held[: pair.first + 1, pair.second + 1 :] -= min(pair.bytes, layers[pair.second].gradient_bytes)
    return held


def _backward_parts(
    sized: SizedProfile, backward: Table, input_gradients: Table
) -> tuple[Table, Table] | tuple[None, None]:
    """Return the two parts of every interval's backward, if all layers' were measured."""
    inputs = [cost.input_grad_ns for cost in sized.costs]
    weights = [cost.weight_grad_ns for cost in sized.costs]
    if None in inputs or None in weights:
        return None, None
    input_grad = between(prefix(part or 0 for part in inputs))
    weight_grad = between(prefix(part or 0 for part in weights))
    loss = sized.loss
    if loss.input_grad_ns is None or loss.weight_grad_ns is None:
        input_grad[:, -1] += loss.backward_ns
    else:
        input_grad[:, -1] += loss.input_grad_ns
        weight_grad[:, -1] += loss.weight_grad_ns
    sends = input_gradients > 0
    return np.where(sends, input_grad, 0), np.where(sends, weight_grad, backward)


def entering(values: Iterable[tuple[ProfiledValue, int]], layers: int) -> Table:
    """Return the bytes of ``values`` that are made before each interval and read inside, each value once."""
    rectangles = Rectangles(layers)
    for value, size in values:
        before = value.producer
        for consumer in value.consumers:
            rectangles.add((before + 1, consumer), (consumer + 1, layers), size)
            before = consumer
    return rectangles.table()


def leaving(values: Iterable[tuple[ProfiledValue, int]], layers: int) -> Table:
    """Return the bytes of ``values`` that are made inside each interval and read after it, each value once."""
    rectangles = Rectangles(layers)
    for value, size in values:
        if value.consumers:
            rectangles.add((0, value.producer), (value.producer + 1, value.consumers[-1]), size)
    return rectangles.table()


@dataclass(frozen=True, kw_only=True)
class SharedPair:
    """Two layers that read one parameter, with no other reader of it between them."""

    first: int
    second: int
    bytes: int


def shared_pairs(shared: Iterable[SharedParameter]) -> Iterator[SharedPair]:
    """Yield the neighbouring readers of every shared parameter: a stage with both holds the parameter once less."""
    for parameter in shared:
        for first, second in zip(parameter.layers, parameter.layers[1:], strict=False):
            yield SharedPair(first=first, second=second, bytes=parameter.bytes)


def all_reduce_ns(size_bytes: int, ranks: int, link: Link) -> int:
    """Return the time of a ring all-reduce of ``size_bytes`` over ``ranks`` ranks."""
    if ranks < 2:
        return 0
    piece = -(-size_bytes // ranks)
    return 2 * (ranks - 1) * link.transfer_ns(piece)


def _shared_update_ns(layer: ProfiledLayer, shared_bytes: int) -> int:
    """Return the part of a layer's optimizer time that is due to a shared parameter, by its share of the bytes."""
    if not layer.optimizer_ns or not layer.gradient_bytes >= shared_bytes > 0:
        return 0
    return layer.optimizer_ns * shared_bytes // layer.gradient_bytes
