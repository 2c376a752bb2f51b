"""How much of the loss a micro-batch is: its share of the samples, of the weights or of the valid targets.

A loss that is a mean over valid targets (cross entropy leaves out the target ``ignore_index``) is a mean over
another number in each micro-batch. So the loss is watched: which cross entropy it takes, of which target,
says what to count, before the first backward.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autopipe.errors import InputError
from autopipe.recorder.example import tensors

Total = Callable[[float], float]


class Reduction(StrEnum):
    """What a loss function does with its samples: a mean, which counts by shares, or a sum, which adds up."""

    MEAN = "mean"
    SUM = "sum"


@dataclass(frozen=True)
class _Mean:
    """A mean over valid targets that a loss took: its target, the one left out, the weight of each class."""

    target: Tensor
    ignore_index: int
    class_weight: Tensor | None

    def count(self, target: Tensor) -> Tensor:
        """Return what the mean of such a target divides by, shape ()."""
        valid = target != self.ignore_index
        if self.class_weight is None:
            return valid.sum()
        weight = self.class_weight.to(target.device)
        return weight[torch.where(valid, target, 0)].masked_fill(~valid, 0).sum(dtype=torch.float64)


class Shares:
    """The shares of one rank that computes losses.

    Parameters
    ----------
    reduction : Reduction
    total : function of a number to a number
        Sums what the mini-batch counts over all replicas; all of them call it, before their first loss.
    """

    def __init__(self, reduction: Reduction, total: Total) -> None:
        self._reduction = reduction
        self._total = total
        self._rule: tuple[int, _Mean] | None = None
        self._is_watching = reduction is Reduction.MEAN
        self._owes_total = reduction is Reduction.MEAN

    def begin(self, sizes: Sequence[int], targets: Sequence[Any], weights: Sequence[Any] | None) -> None:
        """Start a mini-batch.

        Parameters
        ----------
        sizes : sequence of int
            Samples of each micro-batch.
        targets, weights : sequences of trees
            Those of each micro-batch, where the user's memory is, so that counting waits for no device.

        Raises
        ------
        InputError
            If a weight is negative.
        """
        self._sizes, self._targets = tuple(sizes), tuple(targets)
        self._means: list[list[Tensor]] = []
        self._is_given = weights is not None
        self._shares: tuple[float, ...] | None = None
        if weights is not None:
            self._settle([_sum(weight) for weight in weights])
        elif self._reduction is Reduction.SUM:
            self._shares = (1.0,) * len(self._sizes)
        elif self._rule is not None and tensors(self._targets[:1]):
            self._settle(self._counted(*self._rule))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch which means a micro-batch's loss takes."""
        if not self._is_watching or self._is_given:
            yield
            return
        with _Watch() as watch:
            yield
        self._means.append([mean.count(mean.target) for mean in watch.means])
        if self._shares is None:
            self._learn(watch.means)

    def share(self, micro_batch: int) -> float:
        """Return the share of a micro-batch: of all shares of all replicas, 1 is the sum."""
        if self._shares is None:
            self._settle([float(size) for size in self._sizes])
        assert self._shares is not None
        return self._shares[micro_batch]

    def known(self, micro_batch: int) -> float | None:
        """Return the share of a micro-batch, None if only its loss will tell."""
        return None if self._shares is None else self._shares[micro_batch]

    def check(self) -> None:
        """Check at the end of a step that each mean counted as much as its micro-batch's share.

        Raises
        ------
        InputError
            If not: the sum of such losses is not what the loss of the mini-batch is.
        """
        if not self._means or not self._means[0]:
            return
        for column in zip(*self._means, strict=True):
            counts = torch.stack(list(column)).to("cpu", torch.float64)
            assert self._shares is not None
            shares = torch.tensor(self._shares, dtype=torch.float64)
            if not torch.allclose(counts * shares.sum(), shares * counts.sum(), rtol=1e-6):
                raise InputError(
                    f"the loss takes means over {_text(counts)} valid targets in the micro-batches, which count as "
                    f"{_text(shares)} of the loss: their sum is not the mean over all valid targets. Pass "
                    "weight=, 1 for each target that counts and 0 for each other (for a language model that shifts "
                    "its labels: weight=labels[:, 1:] != -100)."
                )

    def settle(self) -> None:
        """Count for nothing in a step that came to no loss here: the other replicas wait for this one's part."""
        if self._owes_total:
            self._total(0.0)
        self._owes_total = self._reduction is Reduction.MEAN

    def _learn(self, means: Sequence[_Mean]) -> None:
        """Find the target of a loss's only mean among the user's, and count it from now on."""
        self._is_watching = bool(means)
        if len(means) == 1:
            # Labels that a loss shifts are a copy of the user's: these are not found, but checked.
            for position, target in enumerate(tensors(self._targets[0])):
                if target.numel() == means[0].target.numel() and _same_values(target, means[0].target):
                    self._rule, self._is_watching = (position, means[0]), False
                    self._means.clear()
                    self._settle(self._counted(position, means[0]))
                    return

    def _counted(self, position: int, mean: _Mean) -> list[float]:
        return [float(mean.count(tensors(target)[position])) for target in self._targets]

    def _settle(self, weights: list[float]) -> None:
        if min(weights, default=0) < 0:
            raise InputError(f"weight= sums to {min(weights):g} in a micro-batch: weights must not be negative.")
        self._owes_total = False
        whole = self._total(sum(weights))
        self._shares = tuple(weight / whole if whole > 0 else 0.0 for weight in weights)


class _Watch(TorchFunctionMode):
    """Notes every mean over valid targets."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[_Mean] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (functional.cross_entropy, functional.nll_loss):
            call = inspect.signature(func).bind(*args, **kwargs)
            call.apply_defaults()
            given = call.arguments
            target = given["target"]
            is_mean = given["reduction"] == "mean" and given["size_average"] is not False and given["reduce"] is None
            if is_mean and not target.is_floating_point():
                self.means.append(_Mean(target, given["ignore_index"], given["weight"]))
        return func(*args, **kwargs)


def _same_values(mine: Tensor, theirs: Tensor) -> bool:
    return torch.equal(mine.detach().flatten().to(theirs.device), theirs.detach().flatten())


def _sum(weight: Any) -> float:
    return sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors(weight))


def _text(numbers: Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers.tolist())
