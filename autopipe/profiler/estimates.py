"""Times are told from work: every layer's operators on a device that is not there, by the roofline."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from autopipe.documents.profile import Cost, Source
from autopipe.documents.work import LayerWork, Sweep, Work
from autopipe.hardware.calibration import Calibration
from autopipe.hardware.roofline import LAUNCH, operators_ns
from autopipe.hardware.specification import Specification
from autopipe.profiler.assemble import Findings
from autopipe.profiler.optimizer import MakeOptimizer, OptimizerCost, parse_optimizer, state_bytes, stepped
from autopipe.profiler.work import Collected, WorkCounter, merged

Works = Mapping[int, Mapping[Sweep, tuple[Work, ...]]]


@dataclass(frozen=True, kw_only=True)
class Estimates(Findings):
    """Footprints of the pieces of a graph, and their work from which times follow.

    ``works`` are by micro-batch size and then by piece, one of each kind; ``alike`` gives the piece that has the
    work of each, the loss being one past the last.
    """

    works: tuple[Works, ...]
    alike: tuple[int, ...]
    device: Specification
    calibration: Calibration | None

    def cost(self, position: int, index: int) -> Cost:
        """Return the cost of piece ``index`` (the loss: one past the last) at the size at ``position``."""
        footprint, work = self.footprints[position], self.works[position][self.alike[index]]
        forward, backward = self._ns(work[Sweep.FORWARD]), self._ns(work[Sweep.BACKWARD])
        inputs = self._ns(work[Sweep.INPUT_GRAD]) if Sweep.INPUT_GRAD in work else None
        return Cost(
            forward_ns=forward,
            backward_ns=backward,
            input_grad_ns=inputs,
            weight_grad_ns=None if inputs is None else max(0, backward - inputs),
            recompute_ns=None if footprint.recomputed[index] is None else forward,
            **footprint.cost_bytes(index),
            source=Source.ROOFLINE if self.calibration is None else Source.CALIBRATED,
        )

    def layer_works(self) -> tuple[LayerWork, ...]:
        """Return the work of one layer of each kind."""
        begins = [*(piece.begin for piece in self.pieces), len(self.graph.layers)]
        return tuple(
            LayerWork(layer=begins[index], sweep=sweep, micro_batch=size, operators=operators)
            for size, works in zip(self.sizes, self.works, strict=True)
            for index, work in works.items()
            for sweep, operators in work.items()
        )

    def _ns(self, operators: tuple[Work, ...]) -> int:
        return operators_ns(operators, self.device, self.calibration.factors if self.calibration else None)


class OptimizerEstimate:
    """Tells the cost of an optimizer's update without memory, one set of shapes and dtypes at a time."""

    def __init__(self, text: str, device: Specification, calibration: Calibration | None, mode: FakeTensorMode) -> None:
        self._make: MakeOptimizer = parse_optimizer(text)
        self._text = text
        self._device = device
        self._factors = {**(calibration.factors if calibration else {}), LAUNCH: 0.0}
        self._mode = mode
        self._costs: dict[Any, OptimizerCost] = {}

    def measure(self, parameters: Sequence[nn.Parameter]) -> OptimizerCost:
        """Return the cost of updating ``parameters``, as part of a step over many more of them.

        Starts of operators are left out: on a GPU, torch updates many parameters with each.
        """
        key = tuple((tuple(parameter.shape), parameter.dtype) for parameter in parameters)
        if not key:
            return OptimizerCost(state_bytes=0, step_ns=0)
        if key not in self._costs:
            with self._mode:
                self._costs[key] = self._estimate(key)
        return self._costs[key]

    def _estimate(self, key: tuple[tuple[tuple[int, ...], torch.dtype], ...]) -> OptimizerCost:
        parameters = [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape, dtype in key]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        collected: Collected = Counter()
        with _ValuesAreOne():
            optimizer = stepped(self._make, parameters, self._text)
            with WorkCounter(lambda: collected):
                optimizer.step()
        return OptimizerCost(
            state_bytes=sum(state_bytes(optimizer, parameter) for parameter in parameters),
            step_ns=operators_ns(merged(collected), self._device, self._factors),
        )


class _ValuesAreOne(TorchDispatchMode):
    """A number that an optimizer reads from a tensor is 1: neither its state nor its work depends on it."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            tensor: Tensor = args[0]
            return 1.0 if tensor.is_floating_point() else 1
        return function(*args, **(kwargs or {}))
