"""The chain of a model's layers is run in place, detached at every seam, so that each can be watched alone.

A seam lies between two pieces of the model. A value passes it without its autograd graph::

    piece 0 --> Send  ~values~>  Receive --> piece 1 --> Send  ~values~>  Receive --> loss
                 |                  ^                     |                  ^
               tail 0    <~gradients~ left here         tail 1    <~gradients~

The backward of piece k starts at its tail: Send hands in the gradients that the pieces after it have left,
and Receive leaves those for the pieces before it. Neither holds a value, so memory is what it is in the
unsplit model; and a piece gets tensors that are no leaves, so it may begin with an in-place operation.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from autopipe.documents.graph import Graph
from autopipe.recorder.example import tensors
from autopipe.stages.recompute import recompute_layers
from autopipe.stages.split import split as cut
from autopipe.stages.split_backward import input_gradients


class Sweep(StrEnum):
    """The two directions of a step, and the two parts that a backward can be split into."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRAD = "input gradients"
    WEIGHT_GRAD = "weight gradients"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Layers ``begin`` to ``end - 1``, between which no cut is legal, as a module.

    ``released`` are the inputs that no later piece reads.
    """

    begin: int
    end: int
    name: str
    module: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...]


class Example(NamedTuple):
    """The arguments of one micro-batch, and its target."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any


class Watcher(Protocol):
    """Is told where each segment, one sweep of one piece, begins and ends; the loss has the index of a last piece."""

    def before(self, sweep: Sweep, index: int, passing: dict[str, Any], received: dict[str, Any]) -> None:
        """Note that a segment begins; keep neither values nor gradients.

        ``passing`` are values, or gradients of values, that wait for later segments; ``received`` the gradients
        that a backward begins with.
        """

    def after(self, sweep: Sweep, index: int) -> None:
        """Note that it has ended."""

    def made(self, index: int, values: dict[str, Any]) -> None:
        """Look at what piece ``index`` has made, by name; keep nothing of it."""


Loss = Callable[[Any, Any], Tensor]


def pieces_of(module: fx.GraphModule, graph: Graph) -> tuple[Piece, ...]:
    """Return the pieces of ``module``, the recorded form of a model: one a layer, wherever a cut is legal."""
    forbidden = {cut.position for cut in graph.forbidden_cuts}
    bounds = [position for position in range(len(graph.layers) + 1) if position not in forbidden]
    stages = cut(module, graph, bounds)
    last = {name: stage.index for stage in stages for name in stage.inputs}
    return tuple(
        Piece(
            begin=stage.begin,
            end=stage.end,
            name=graph.layers[stage.begin].name,
            module=stage.module,
            inputs=stage.inputs,
            outputs=stage.outputs,
            released=tuple(name for name in stage.inputs if last[name] == stage.index),
        )
        for stage in stages
    )


def recomputing(
    module: fx.GraphModule, graph: Graph, pieces: Sequence[Piece], chosen: Collection[int]
) -> tuple[Piece, ...]:
    """Return ``pieces``, of which the ``chosen`` ones, a layer each, recompute as the executor has them do it."""
    fresh = pieces_of(module, graph)
    for index in chosen:
        layer = graph.layers[pieces[index].begin]
        stage = fresh[index].module
        assert isinstance(stage, fx.GraphModule)
        recompute_layers(stage, {layer.name: layer.nodes})
    return tuple(fresh[index] if index in chosen else piece for index, piece in enumerate(pieces))


@dataclass
class _Flow:
    """What crosses seams in a step, forward and backward, and where backwards start (tails) and end (tokens)."""

    values: dict[str, Any] = field(default_factory=dict)
    needs_grad: set[str] = field(default_factory=set)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    tails: list[tuple[Tensor | None, tuple[str, ...]]] = field(default_factory=list)
    tokens: list[list[Tensor]] = field(default_factory=list)


class Chain:
    """A model's pieces and its loss, ready to be run as one training step, segment by segment.

    Attributes
    ----------
    position : tuple of Sweep and int
        The segment that runs now or ran last, for the message when it fails.
    wrote : set of int
        The pieces that wrote to a value that they were given: run again, they would read what they wrote.
    """

    def __init__(self, pieces: Sequence[Piece], loss: Loss) -> None:
        self.pieces = tuple(pieces)
        self.position = (Sweep.FORWARD, 0)
        self.wrote: set[int] = set()
        self._loss = loss

    def step(self, example: Example, watcher: Watcher, *, recompute: Collection[int] = (), split: bool = False) -> None:
        """Run one forward and one backward sweep; gradients add up in the parameters' ``.grad``.

        The pieces ``recompute`` keep what they read, and run again before their backward. With ``split`` the
        backward of every piece is two segments: the gradients of its inputs, then those of its weights.
        """
        # Casts of weights are forgotten before and after a forward, as where it alone is in the autocast region.
        torch.clear_autocast_cache()
        flow = _Flow()
        output = None
        for index, piece in enumerate(self.pieces):
            call = recomputed(piece.module) if index in recompute else piece.module
            output = self._forward(index, call, example, flow, watcher)
        end = len(self.pieces)
        self.position = (Sweep.FORWARD, end)
        watcher.before(Sweep.FORWARD, end, {}, {})
        loss = self._loss(output, example.target)
        watcher.after(Sweep.FORWARD, end)
        torch.clear_autocast_cache()
        del output
        watcher.made(end, {"loss": loss})
        if loss.requires_grad:
            self.position = (Sweep.BACKWARD, end)
            watcher.before(Sweep.BACKWARD, end, {}, {})
            loss.backward()
            watcher.after(Sweep.BACKWARD, end)
        del loss
        for index in reversed(range(end)):
            self._backward(index, flow, watcher, split)

    def _forward(self, index: int, call: Callable[..., Any], example: Example, flow: _Flow, watcher: Watcher) -> Any:
        """Run the forward of piece ``index``; the last returns the model's output, received by the loss."""
        self.position = (Sweep.FORWARD, index)
        piece = self.pieces[index]
        flow.tokens.append([])
        args: Sequence[Any] = [_receive(flow, name, flow.tokens[-1]) for name in piece.inputs]
        for name in piece.released:
            del flow.values[name]
        kwargs: dict[str, Any] = {}
        if index == 0:
            args, kwargs = example.args, example.kwargs
        passing = {name: value for name, value in flow.values.items() if name not in piece.inputs}
        versions = [(tensor, tensor._version) for tensor in tensors((args, kwargs))]
        watcher.before(Sweep.FORWARD, index, passing, {})
        result = call(*args, **kwargs)
        watcher.after(Sweep.FORWARD, index)
        if any(tensor._version != version for tensor, version in versions):
            self.wrote.add(index)
        del args, passing, versions
        if index < len(self.pieces) - 1:
            _send(flow, dict(zip(piece.outputs, result, strict=True)), watcher, index)
            return None
        leaves, form = pytree.tree_flatten(result)
        names = tuple(output_name(position) for position in range(len(leaves)))
        _send(flow, dict(zip(names, leaves, strict=True)), watcher, index)
        received = [_receive(flow, name, []) for name in names]
        flow.values.clear()
        return pytree.tree_unflatten(received, form)

    def _backward(self, index: int, flow: _Flow, watcher: Watcher, split: bool) -> None:
        (tail, names), tokens = flow.tails.pop(), flow.tokens.pop()
        if tail is None or not any(name in flow.gradients for name in names):
            return
        self.position = (Sweep.BACKWARD, index)
        seed = torch.empty_like(tail)
        passing = {name: gradient for name, gradient in flow.gradients.items() if name not in names}
        received = {name: gradient for name, gradient in flow.gradients.items() if name in names}
        if split:
            watcher.before(Sweep.INPUT_GRAD, index, passing, received)
            deferred = input_gradients([get_gradient_edge(tail)], [seed], tokens)
            watcher.after(Sweep.INPUT_GRAD, index)
            watcher.before(Sweep.WEIGHT_GRAD, index, passing, {})
            deferred.run()
            watcher.after(Sweep.WEIGHT_GRAD, index)
            return
        watcher.before(Sweep.BACKWARD, index, passing, received)
        del passing, received
        tail.backward(seed)
        watcher.after(Sweep.BACKWARD, index)


def recomputed(module: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``module`` as one segment of activation checkpointing."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(lambda *given: module(*given, **kwargs), *args, use_reentrant=False)

    return call


def output_name(position: int) -> str:
    """Return the name under which leaf ``position`` of the model's output crosses to the loss."""
    return f"output {position}"


def _send(flow: _Flow, made: dict[str, Any], watcher: Watcher, index: int) -> None:
    watcher.made(index, made)
    names = tuple(name for name, value in made.items() if isinstance(value, Tensor) and value.requires_grad)
    tail = _Send.apply(flow.gradients, names, *(made[name] for name in names)) if names else None
    flow.tails.append((tail, names))
    flow.needs_grad.update(names)
    for name, value in made.items():
        flow.values[name] = value.detach() if isinstance(value, Tensor) else value


def _receive(flow: _Flow, name: str, tokens: list[Tensor]) -> Any:
    value = flow.values[name]
    if name not in flow.needs_grad:
        return value
    token = torch.empty(0, device=value.device, requires_grad=True)
    tokens.append(token)
    return _Receive.apply(token, flow.gradients, name, value)


class _Send(torch.autograd.Function):
    """Ends a piece: its backward takes the gradients that later pieces left, and drops them as they are used."""

    @staticmethod
    def forward(ctx: Any, gradients: dict[str, Tensor], names: tuple[str, ...], *values: Tensor) -> Tensor:
        ctx.gradients, ctx.names = gradients, names
        return torch.empty(0, device=values[0].device)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
        return (None, None, *(ctx.gradients.pop(name, None) for name in ctx.names))


class _Receive(torch.autograd.Function):
    """Begins a piece: its backward leaves the gradient of one value, added to those that are there."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, gradients: dict[str, Tensor], name: str, value: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.name = gradients, name
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, ...]:
        if gradient is not None:
            there = ctx.gradients.get(ctx.name)
            ctx.gradients[ctx.name] = gradient if there is None else there + gradient
        return (None, None, None, None)
