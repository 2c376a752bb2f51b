"""What an optimizer holds and takes per layer is measured on scratch parameters of the same shapes."""

import ast
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autopipe.errors import InputError
from autopipe.profiler.timer import Clock

TIMED_STEPS = 5
LARGEST_SWEEP = 128 * 1024**2

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class OptimizerCost:
    """State in bytes of some parameters, and the time of their update; None where memory did not suffice."""

    state_bytes: int
    step_ns: int | None


def parse_optimizer(text: str) -> MakeOptimizer:
    """Return what makes the optimizer that ``text`` names.

    Parameters
    ----------
    text : str
        A class of ``torch.optim`` in any case, with options after a colon: ``adamw``,
        ``sgd:momentum=0.9,nesterov=True``.

    Raises
    ------
    InputError
        If there is no such class, or an option is not ``name=value``.
    """
    name, _, options = text.partition(":")
    classes = {
        known.lower(): kind
        for known, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    kind = classes.get(name.strip().lower())
    if kind is None:
        raise InputError(f"torch.optim has no optimizer {name!r}. It has: {', '.join(sorted(classes))}.")
    keywords = dict(_option(option) for option in options.split(",") if option.strip())
    return lambda parameters: kind(parameters, **keywords)


class OptimizerMeter:
    """Measures one optimizer on one device; equal sets of parameters are measured once.

    Before each timed step as many bytes are written to as a whole step touches (at most 128 MiB): in training, too,
    the rest of the model has passed through the caches since these parameters were last updated.

    Parameters
    ----------
    touched_bytes : int
        What an update of the whole model reads and writes.
    """

    def __init__(self, text: str, device: torch.device, clock: Clock, *, touched_bytes: int = 0) -> None:
        self._sweep = torch.zeros(min(touched_bytes, LARGEST_SWEEP), dtype=torch.uint8, device=device)
        self._text = text
        self._make = parse_optimizer(text)
        self._device = device
        self._clock = clock
        self._costs: dict[tuple[tuple[tuple[int, ...], torch.dtype], ...], OptimizerCost] = {}
        self._fixed_ns = self._step_ns(self._optimizer([nn.Parameter(torch.zeros(1, device=device))]))

    def measure(self, parameters: Sequence[nn.Parameter]) -> OptimizerCost:
        """Return the cost of updating ``parameters``, as part of a step over many more of them.

        What an optimizer takes per step however many parameters it has is left out.

        Raises
        ------
        InputError
            If the optimizer cannot be made or step, for example because it needs a closure.
        """
        key = tuple((tuple(parameter.shape), parameter.dtype) for parameter in parameters)
        if not key:
            return OptimizerCost(state_bytes=0, step_ns=0)
        if key not in self._costs:
            self._costs[key] = self._measure(key)
        return self._costs[key]

    def _measure(self, key: tuple[tuple[tuple[int, ...], torch.dtype], ...]) -> OptimizerCost:
        try:
            scratch = [self._scratch(shape, dtype) for shape, dtype in key]
            optimizer = self._optimizer(scratch)
            step_ns = max(0, self._step_ns(optimizer) - self._fixed_ns)
            return OptimizerCost(state_bytes=sum(state_bytes(optimizer, one) for one in scratch), step_ns=step_ns)
        except torch.OutOfMemoryError:
            if len(key) == 1:
                raise
            return OptimizerCost(state_bytes=sum(self._measure((one,)).state_bytes for one in key), step_ns=None)

    def _scratch(self, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
        parameter = nn.Parameter(torch.full(shape, 1e-2, dtype=dtype, device=self._device))
        parameter.grad = torch.full_like(parameter, 1e-3)
        return parameter

    def _optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return stepped(self._make, parameters, self._text)

    def _step_ns(self, optimizer: torch.optim.Optimizer) -> int:
        marks = []
        for _ in range(TIMED_STEPS):
            self._sweep.add_(1)
            begin = self._clock.mark()
            optimizer.step()
            marks.append((begin, self._clock.mark()))
        self._clock.finish()
        return round(statistics.median(self._clock.between(begin, end) for begin, end in marks))


def stepped(make: MakeOptimizer, parameters: list[nn.Parameter], text: str) -> torch.optim.Optimizer:
    """Return the optimizer of ``parameters`` that ``text`` names after one step, by which it has made its state.

    Raises
    ------
    InputError
        If it cannot be made or step, for example because it needs a closure.
    """
    try:
        optimizer = make(parameters)
        optimizer.step()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise InputError(
            f"the optimizer {text!r} cannot update parameters as it is: {error}. "
            "Name one that steps on dense gradients without a closure, for example adamw or sgd:lr=0.1."
        ) from error
    return optimizer


def state_bytes(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> int:
    """Return the bytes that ``optimizer`` keeps for ``parameter``."""
    state = optimizer.state.get(parameter, {})
    return sum(value.untyped_storage().nbytes() for value in state.values() if isinstance(value, torch.Tensor))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        raise InputError(
            f"{text!r} is no option of an optimizer: write name=value, for example momentum=0.9."
        ) from None
