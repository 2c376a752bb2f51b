"""The means that a loss takes are watched: what each divides by says how much a micro-batch counts."""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Older versions of torch lack the last one.
_OVER_TARGETS = tuple(
    getattr(functional, name)
    for name in ("cross_entropy", "nll_loss", "linear_cross_entropy")
    if hasattr(functional, name)
)
_BY_WEIGHT = (functional.mse_loss, functional.l1_loss)
_OVER_ELEMENTS = (
    *_BY_WEIGHT,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)
_IGNORED = -100


@dataclass(frozen=True)
class Mean:
    """A mean that a loss took.

    Attributes
    ----------
    source : Tensor
        What says how much counts: targets, or weights.
    count : function of such a tensor to a tensor, shape () or (2,)
        What the mean divides by; of two numbers either may be in step with the shares.
    is_rule : bool
        Whether another micro-batch's ``source`` tells its share; if not, that it is proportional can only be checked.
    """

    source: Tensor
    count: Callable[[Tensor], Tensor]
    is_rule: bool = True


class Watch(TorchFunctionMode):
    """Notes every mean over what counts, and every loss that is a sum.

    Parameters
    ----------
    is_loss : bool
        Whether all that is computed is the loss: if it is the model too, only means over targets are noted.
    dim : int
        In which dimension the model's output carries the batch.
    """

    def __init__(self, *, is_loss: bool, dim: int) -> None:
        super().__init__()
        self._is_loss = is_loss
        self._dim = dim
        self.means: list[Mean] = []
        self.sums: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.l1_loss:
            kwargs = {"weight": _lost_weight(), **kwargs}
        result = func(*args, **kwargs)
        if func in _OVER_TARGETS or func in _OVER_ELEMENTS:
            call = inspect.signature(func).bind(*args, **kwargs)
            call.apply_defaults()
            given = call.arguments
            self._note(func, given, _reduction(given), result)
        return result

    def _note(self, func: Any, given: dict[str, Any], reduction: str, result: Tensor) -> None:
        if reduction == "sum":
            self.sums.append(result)
        target = given["target"]
        if func in _OVER_TARGETS and not target.is_floating_point():
            ignored = given["ignore_index"]
            ignored = _IGNORED if ignored is None else ignored
            count = functools.partial(_valid, ignored=ignored, class_weight=given["weight"])
            if reduction == "mean":
                self.means.append(Mean(target, count))
            elif self._is_loss:
                self.means.append(Mean(target, count, is_rule=False))
        elif reduction == "mean" and func in _BY_WEIGHT and given.get("weight") is not None:
            self.means.append(Mean(given["weight"], lambda weight: weight.sum(dtype=torch.float64)))
        elif reduction == "mean" and self._is_loss:
            self.means.append(Mean(given["input"], functools.partial(_sizes, dim=self._dim), is_rule=False))


def _lost_weight() -> Tensor | None:
    """Return the weight of the call of `l1_loss` that led here: torch 2.13 does not hand it to a mode."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not functional.l1_loss.__code__:
        frame = frame.f_back
    weight: Tensor | None = frame.f_locals.get("weight") if frame.f_code is functional.l1_loss.__code__ else None
    return weight


def _reduction(given: dict[str, Any]) -> str:
    """Return the reduction of a call of a loss, also where it is said the old way."""
    average, reduce = given.get("size_average"), given.get("reduce")
    if average is None and reduce is None:
        return str(given["reduction"])
    if reduce is False:
        return "none"
    return "sum" if average is False else "mean"


def _valid(target: Tensor, *, ignored: int, class_weight: Tensor | None) -> Tensor:
    valid = target != ignored
    if class_weight is None:
        return valid.sum()
    weight = class_weight.to(target.device)
    return weight[torch.where(valid, target, 0)].masked_fill(~valid, 0).sum(dtype=torch.float64)


def _sizes(tensor: Tensor, *, dim: int) -> Tensor:
    """Return the number of samples and of elements: lengths may differ, and the loss may have moved the dimension."""
    return torch.tensor([tensor.shape[dim] if tensor.dim() > dim else tensor.numel(), tensor.numel()])
