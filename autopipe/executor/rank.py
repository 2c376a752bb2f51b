"""A rank: the runtime of its stages, with what it shares with other ranks and with its replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autopipe.executor.request import Request
from autopipe.executor.runtime import Context, Runtime
from autopipe.executor.tied import TiedGradients


@dataclass(frozen=True, kw_only=True)
class Rank:
    """All that one rank runs: its runtime, where its parameters stand, by original name, its part in tied gradients."""

    runtime: Runtime
    places: dict[str, tuple[nn.Module, str]]
    tied: TiedGradients

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The rank's parameters as they are now: `torch.distributed.fsdp.fully_shard` puts others in their places."""
        found = {name: module._parameters[attribute] for name, (module, attribute) in self.places.items()}
        return {name: parameter for name, parameter in found.items() if parameter is not None}

    def step(self, request: Request, *, context: Context) -> Tensor:
        """Run one mini-batch as `Runtime.step` does, then add up tied gradients and average over replicas.

        Raises
        ------
        StepError
            If any rank failed; what was begun for tied gradients and means is taken back first.
        """
        if not request.training:
            return self.runtime.step(request, context=context)
        means = self.runtime.means
        if means is not None:
            means.begin()
        self.tied.begin()
        try:
            loss = self.runtime.step(request, context=context)
        except BaseException:
            self.tied.restore()
            if means is not None:
                means.restore()
            raise
        self.runtime.whereabouts.wait("the other ranks, to add up tied gradients and copy buffers")
        self.tied.finish()
        if means is not None:
            means.end()
            means.copy_first_buffers()
        return loss


def copy_stand_ins(ranks: Sequence[Rank]) -> None:
    """Bring stand-ins on other devices up to date with the parameters that they stand for."""
    owners: dict[str, nn.Parameter] = {}
    with torch.no_grad():
        for rank in ranks:
            for name, parameter in rank.parameters.items():
                owner = owners.setdefault(name, parameter)
                if owner is not parameter and owner.data_ptr() != parameter.data_ptr():
                    parameter.copy_(owner)
