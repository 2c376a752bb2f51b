"""How much of the loss a micro-batch is: its share of the samples, of the weights or of the valid targets.

A loss that is a mean over valid targets (cross entropy leaves out the target ``ignore_index``) or by weights is a
mean over another number in each micro-batch. So the loss is watched: which mean it takes, of which target,
says what to count, before the first backward.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from autopipe.errors import InputError
from autopipe.executor.means import Mean, Watch
from autopipe.recorder.example import tensors

Total = Callable[[float], float]


class Reduction(StrEnum):
    """What a loss function does with its samples: a mean, which counts by shares, or a sum, which adds up."""

    MEAN = "mean"
    SUM = "sum"


class Shares:
    """The shares of one rank that computes losses.

    Parameters
    ----------
    reduction : Reduction
    total : function of a number to a number
        Sums what the mini-batch counts over all replicas; all of them call it, before their first loss.
    dim : int
        In which dimension the model's output carries the batch.
    """

    def __init__(self, reduction: Reduction, total: Total, *, dim: int = 0) -> None:
        self._reduction = reduction
        self._total = total
        self._dim = dim
        self._rule: tuple[int, Mean] | None = None
        self._sums: list[Tensor] = []
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
    def watched(self, *, is_loss: bool) -> Iterator[None]:
        """Watch which means a micro-batch's loss takes; ``is_loss`` says that nothing else is computed meanwhile."""
        if not self._is_watching or self._is_given:
            yield
            return
        with Watch(is_loss=is_loss, dim=self._dim) as watch:
            yield
        self._sums = watch.sums
        self._means.append([mean.count(mean.source) for mean in watch.means])
        if self._shares is None:
            self._learn(watch.means)

    def check_mean(self, loss: Tensor) -> None:
        """Check that the loss of a micro-batch is no sum, whose micro-batches would have to add up.

        Raises
        ------
        InputError
            If it is.
        """
        sums, self._sums = self._sums, []
        if len(self._sizes) > 1 and any(loss.data_ptr() == one.data_ptr() for one in sums):
            raise InputError(
                'the loss is a sum over its samples, and a pipeline takes losses for means: pass reduction="sum" to '
                "autopipe.pipeline, so that micro-batches add up, or divide the sum by the number of samples."
            )

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
        if not self._means:
            return
        if len(self._sizes) > 1 and len(self._means) == len(self._sizes):
            self._is_watching = any(self._means)
        assert self._shares is not None
        shares = torch.tensor(self._shares, dtype=torch.float64)
        for column in itertools.zip_longest(*self._means, fillvalue=torch.zeros(())):
            ways = zip(*torch.broadcast_tensors(*(count.cpu().reshape(-1) for count in column)), strict=True)
            counts, *others = (torch.stack(way).to(torch.float64) for way in ways)
            if not any(_in_step(numbers, shares) for numbers in (counts, *others)):
                raise InputError(
                    f"the loss takes means over {_text(counts)} values in the micro-batches, which count as "
                    f"{_text(shares)} of the loss: their sum is not the mean over all of them. Pass weight=, 1 for "
                    "each target that counts and 0 for each other (for a language model that shifts its labels: "
                    "weight=labels[:, 1:] != -100); 1 for each sample where every sample counts alike."
                )

    def settle(self) -> None:
        """Count for nothing in a step that came to no loss here: the other replicas wait for this one's part."""
        if self._owes_total:
            self._total(0.0)
        self._owes_total = self._reduction is Reduction.MEAN

    def _learn(self, means: Sequence[Mean]) -> None:
        """Find the target of a loss's only mean among the user's, and count it from now on."""
        if len(means) == 1 and means[0].is_rule:
            # Labels that a loss shifts are a copy of the user's: these are not found, but checked.
            for position, target in enumerate(tensors(self._targets[0])):
                if _same_values(target, means[0].source):
                    self._rule, self._is_watching = (position, means[0]), False
                    self._means.clear()
                    self._settle(self._counted(position, means[0]))
                    return

    def _counted(self, position: int, mean: Mean) -> list[float]:
        return [float(mean.count(tensors(target)[position])) for target in self._targets]

    def _settle(self, weights: list[float]) -> None:
        if min(weights, default=0) < 0:
            raise InputError(f"weight= sums to {min(weights):g} in a micro-batch: weights must not be negative.")
        self._owes_total = False
        whole = self._total(sum(weights))
        self._shares = tuple(weight / whole if whole > 0 else 0.0 for weight in weights)


def _in_step(counts: Tensor, shares: Tensor) -> bool:
    return torch.allclose(counts * shares.sum(), shares * counts.sum(), rtol=1e-6)


def _same_values(mine: Tensor, theirs: Tensor) -> bool:
    return mine.numel() == theirs.numel() and torch.equal(
        mine.detach().flatten().to(theirs.device), theirs.detach().flatten()
    )


def _sum(weight: Any) -> float:
    return sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors(weight))


def _text(numbers: Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers.tolist())
