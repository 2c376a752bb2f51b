"""The end of the last stage: targets come in, the loss is taken and counted by its share, outputs are kept."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.executor.flight import Flight
from autopipe.executor.microbatch import Inputs, is_ready, to_device
from autopipe.executor.outputs import join
from autopipe.executor.request import Request
from autopipe.executor.seeds import Seeds
from autopipe.executor.shares import Shares
from autopipe.stages.loss import LossFunction, check_loss, resolve_loss
from autopipe.transport.endpoint import Endpoint


class Ending:
    """What the rank of the last stage does with the model's output.

    Attributes
    ----------
    outputs : Any
        The output for the replica's mini-batch, where a step was asked for it, until it is taken.
    samples : int
        How many samples it is for.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loss_fn: LossFunction | None,
        shares: Shares,
        seeds: Seeds,
        *,
        inputs: Inputs | None = None,
    ) -> None:
        check_loss(loss_fn)
        self._device = endpoint.device
        self._replicas = endpoint.replicas
        self._loss_fn = loss_fn
        self._shares = shares
        self._seeds = seeds
        self.reads = inputs if inputs is not None else Inputs((), ())
        self.outputs: Any = None
        self.samples = 0

    def begin(self, request: Request, sizes: tuple[int, ...]) -> None:
        """Start a step: cut targets and weights.

        Raises
        ------
        InputError
            If they do not fit the inputs.
        """
        self._request, self._sizes, self.samples = request, sizes, sum(sizes)
        self._losses: dict[int, Tensor] = {}
        self._parts: dict[int, Any] = {}
        given = self.reads.cut_target(request.target, sizes)
        is_cut = is_ready(request.target, self._device)
        self._targets = given if is_cut else self.reads.cut_target(to_device(request.target, self._device), sizes)
        weights = None if request.weight is None else self.reads.cut_target(request.weight, sizes)
        self._shares.begin(sizes, given, weights)

    def run(self, flight: Flight, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], i: int) -> None:
        """Run the last stage on a micro-batch, and keep what the step was asked for: its loss, its output."""
        request, shares = self._request, self._shares
        own_loss = self._loss_fn is None and request.wants_loss
        with shares.watched(is_loss=False) if own_loss else contextlib.nullcontext():
            output = module(*args, **kwargs)
        if request.wants_outputs:
            self._parts[i] = output
        if not request.wants_loss:
            return
        if shares.known(i) != 0:
            with contextlib.nullcontext() if own_loss else shares.watched(is_loss=True):
                loss = self._seeds.call_perhaps("loss", resolve_loss, self._loss_fn, output, self._targets[i])
            shares.check_mean(loss)
        share = shares.share(i)
        if share == 0:  # a mean over nothing may be no number, and counts for nothing
            self._losses[i] = torch.zeros((), device=self._device)
            return
        self._losses[i] = loss.detach() * share
        # The mean over replicas is taken of their gradients.
        scale = request.scale * self._replicas
        flight.loss = loss * share * scale if scale != 1.0 else loss * share

    def finish(self) -> Tensor | None:
        """Return the loss of the mini-batch, None if none was asked for, and join the outputs.

        Raises
        ------
        InputError
            If the micro-batches' losses do not add up to it.
        """
        count = len(self._sizes)
        if self._request.wants_outputs and count:
            shares = [self._shares.share(i) for i in range(count)]
            own = [share / (sum(shares) or 1.0) for share in shares]
            parts = [self._parts.pop(i) for i in range(count)]
            self.outputs = join(parts, self._sizes, own, dim=self.reads.output_dim)
        if not self._losses:
            return None
        self._shares.check()
        total = self._losses[0]
        for i in range(1, count):
            total = total + self._losses[i]
        return total

    def settle(self) -> None:
        """Take part in what the replicas add up, if this step has not yet."""
        self._shares.settle()


def take_outputs(endings: Sequence[Ending]) -> Any:
    """Return the output that the ranks of a process have, joined over replicas, and let go of it; None without one."""
    having = [ending for ending in endings if ending.outputs is not None]
    outputs, sizes = [ending.outputs for ending in having], [ending.samples for ending in having]
    for ending in having:
        ending.outputs = None
    if not having:
        return None
    return join(outputs, sizes, [size / sum(sizes) for size in sizes], dim=having[0].reads.output_dim)
