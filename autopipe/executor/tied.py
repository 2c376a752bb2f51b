"""Tied parameters: one that stages of several ranks read has its gradients summed over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autopipe.documents.graph import Graph
from autopipe.schedules.edges import stage_of
from autopipe.transport.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Tie:
    """A trainable parameter, by its original name, and the ranks whose stages read it; the first one owns it."""

    name: str
    ranks: tuple[int, ...]

    @property
    def owner(self) -> int:
        """The rank that counts the parameter in norms and state."""
        return self.ranks[0]


def find_ties(graph: Graph, bounds: Sequence[int], stage_ranks: Sequence[int]) -> tuple[Tie, ...]:
    """Return the parameters that more than one rank reads, in the order of their names in the model."""
    owner = stage_of(bounds)
    trainable = {p.name for p in graph.parameters if not p.is_buffer}
    ties = []
    for name, layers in graph.tied().items():
        ranks = tuple(dict.fromkeys(stage_ranks[owner[layer]] for layer in layers))
        if name in trainable and len(ranks) > 1:
            ties.append(Tie(name=name, ranks=ranks))
    return tuple(ties)


class TiedGradients:
    """Sums the gradients of this rank's tied parameters with the other ranks'.

    Only what a step adds is summed: gradients of earlier steps are set aside first.

    Parameters
    ----------
    parameters : mapping
        This rank's parameter of each tie that it takes part in, by name.
    first_tag : int
        Tags from here on are free.
    """

    def __init__(
        self, ties: Sequence[Tie], parameters: Mapping[str, nn.Parameter], endpoint: Endpoint, *, first_tag: int
    ) -> None:
        self.ties = tuple(ties)
        self._parts = [
            (tie, parameters[tie.name], first_tag + 2 * i) for i, tie in enumerate(ties) if tie.name in parameters
        ]
        self._endpoint = endpoint
        self._before: list[Tensor | None] = []

    def begin(self) -> None:
        """Set earlier gradients aside."""
        self._before = []
        for _, parameter, _ in self._parts:
            self._before.append(parameter.grad)
            parameter.grad = None

    def finish(self) -> None:
        """Sum the step's gradients in the order of the ranks, on every rank that holds its own parameter.

        Where ranks share memory only the owner keeps the sum: the others' parameters stand for the owner's.
        """
        for (tie, parameter, tag), before in zip(self._parts, self._before, strict=True):
            if not parameter.requires_grad:
                continue
            step = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            step = step.to_dense() if step.is_sparse else step.contiguous()
            total = self._sum(tie, step, tag)
            if total is None:
                parameter.grad = None
            else:
                parameter.grad = total if before is None else before.add_(total)
        self._before = []

    def restore(self) -> None:
        """Undo `begin` after a step that failed."""
        for (_, parameter, _), before in zip(self._parts, self._before, strict=True):
            parameter.grad = before
        self._before = []

    def _sum(self, tie: Tie, step: Tensor, tag: int) -> Tensor | None:
        end = self._endpoint
        if end.rank != tie.owner:
            end.send(step, peer=tie.owner, tag=tag).wait()
            if end.shares_memory:
                return None
            total = torch.empty_like(step)
            end.receive(total, peer=tie.owner, tag=tag + 1).wait()
            return total
        total = step.clone()
        for other in tie.ranks[1:]:
            part = torch.empty_like(step)
            end.receive(part, peer=other, tag=tag).wait()
            total += part
        if not end.shares_memory:
            for other in tie.ranks[1:]:
                end.send(total, peer=other, tag=tag + 1).wait()
        return total
