"""What was measured of every piece becomes the layers and values of a profile."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from autopipe.documents.graph import Graph
from autopipe.documents.profile import Cost, ProfiledLayer, ProfiledValue, SharedParameter, Source, WholeStep
from autopipe.profiler.footprint import Footprint
from autopipe.profiler.layers import Piece, Sweep
from autopipe.profiler.optimizer import OptimizerCost
from autopipe.profiler.rounds import Times


class Meter(Protocol):
    """Knows what an optimizer holds and takes."""

    def measure(self, parameters: Sequence[nn.Parameter]) -> OptimizerCost:
        """Return the cost of updating ``parameters``."""


@dataclass(frozen=True, kw_only=True)
class Findings(ABC):
    """Footprints of the pieces of a graph at several micro-batch sizes, ascending, and whatever tells their times."""

    graph: Graph
    pieces: tuple[Piece, ...]
    sizes: tuple[int, ...]
    footprints: tuple[Footprint, ...]

    @abstractmethod
    def cost(self, position: int, index: int) -> Cost:
        """Return the cost of piece ``index`` (the loss: one past the last) at the size at ``position``."""

    def loss(self) -> tuple[Cost, ...]:
        """Return the cost of the loss at every size."""
        return tuple(self.cost(position, len(self.pieces)) for position in range(len(self.sizes)))


@dataclass(frozen=True, kw_only=True)
class Measurements(Findings):
    """Findings whose times were measured."""

    times: Times

    def cost(self, position: int, index: int) -> Cost:
        """Return the cost of piece ``index`` (the loss: one past the last) at the size at ``position``."""
        size, footprint = self.sizes[position], self.footprints[position]
        recomputes = footprint.recomputed[index] is not None
        return Cost(
            forward_ns=self.times.duration(size, Sweep.FORWARD, index),
            backward_ns=self.times.duration(size, Sweep.BACKWARD, index),
            input_grad_ns=self._part(size, Sweep.INPUT_GRAD, index),
            weight_grad_ns=self._part(size, Sweep.WEIGHT_GRAD, index),
            recompute_ns=self.times.recompute(size, index) if recomputes else None,
            **footprint.cost_bytes(index),
            host_ns=self.times.host(size, index),
            source=Source.MEASURED,
            forward_spread=self.times.spread(size, Sweep.FORWARD, index),
            backward_spread=self.times.spread(size, Sweep.BACKWARD, index),
        )

    def _part(self, size: int, sweep: Sweep, index: int) -> int:
        """Return one part of a backward; all of the loss's leads to its inputs."""
        if index < len(self.pieces):
            return self.times.duration(size, sweep, index)
        return self.times.duration(size, Sweep.BACKWARD, index) if sweep is Sweep.INPUT_GRAD else 0


def profiled_layers(found: Findings, model: nn.Module, meter: Meter) -> tuple[ProfiledLayer, ...]:
    """Return every layer with its costs; a piece of several layers is booked to the first of them."""
    described = {parameter.name: parameter for parameter in found.graph.parameters}
    source = found.loss()[0].source
    nothing = Cost(forward_ns=0, backward_ns=0, saved_bytes=0, transient_bytes=0, source=source)
    first = {piece.begin: index for index, piece in enumerate(found.pieces)}
    layers = []
    for position, layer in enumerate(found.graph.layers):
        trained = [name for name in layer.parameters if described[name].requires_grad]
        update = meter.measure([model.get_parameter(name) for name in trained])
        index = first.get(position)
        costs = (nothing,) * len(found.sizes)
        if index is not None:
            costs = tuple(found.cost(size, index) for size in range(len(found.sizes)))
        layers.append(
            ProfiledLayer(
                name=layer.name,
                kind=layer.kind,
                parameters=layer.parameters,
                parameter_bytes=sum(described[name].bytes for name in layer.parameters),
                gradient_bytes=sum(described[name].bytes for name in trained),
                optimizer_bytes=update.state_bytes,
                buffer_bytes=sum(described[name].bytes for name in layer.buffers),
                optimizer_ns=update.step_ns,
                group=layer.group,
                costs=costs,
            )
        )
    return tuple(layers)


def profiled_values(found: Findings) -> tuple[ProfiledValue, ...]:
    """Return every crossing value with its bytes at every size.

    A value that stays inside a piece keeps the bytes of the recorded example: no stage boundary can cut it.
    """
    largest = found.footprints[-1]
    begin = [piece.begin for piece in found.pieces]
    return tuple(
        ProfiledValue(
            name=value.name,
            producer=value.producer,
            consumers=value.consumers,
            requires_grad=value.requires_grad,
            bytes=tuple(footprint.value_bytes.get(value.name, value.bytes) for footprint in found.footprints),
            gradient_bytes=tuple(footprint.gradient_bytes.get(value.name, 0) for footprint in found.footprints),
            saved_at=begin[largest.saved_at[value.name]] if value.name in largest.saved_at else None,
            producer_saves=value.name in largest.maker_saves,
            storage_bytes=tuple(footprint.storage_bytes.get(value.name, 0) for footprint in found.footprints),
            readers=tuple(begin[reader] for reader in largest.readers.get(value.name, ())),
            is_rebuilt=value.is_rebuilt,
        )
        for value in found.graph.values
    )


def whole_steps(found: Measurements, layers: Sequence[ProfiledLayer]) -> tuple[WholeStep, ...]:
    """Return the unsplit step at every size beside the sum of the layers and the loss."""
    loss = found.loss()
    steps = []
    for position, size in enumerate(found.sizes):
        column = [layer.costs[position] for layer in layers] + [loss[position]]
        total = sum(cost.forward_ns + cost.backward_ns for cost in column)
        steps.append(WholeStep(micro_batch=size, step_ns=found.times.whole(size), layers_ns=total))
    return tuple(steps)


def shared_parameters(graph: Graph) -> tuple[SharedParameter, ...]:
    """Return the parameters that several layers read."""
    size = {parameter.name: parameter.bytes for parameter in graph.parameters}
    return tuple(SharedParameter(name=name, layers=layers, bytes=size[name]) for name, layers in graph.tied().items())
