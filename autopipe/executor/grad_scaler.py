"""A gradient scaler whose ranks agree: an overflow on one of them makes all skip the optimizer's step."""

from typing import Any

import torch
from torch import Tensor

from autopipe.documents.arguments import typed
from autopipe.errors import InputError
from autopipe.executor.pipeline import Pipeline


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for a pipeline.

    The loss is scaled by ``pipe.step(..., scale=scaler.get_scale())``; ``unscale_``, ``step`` and ``update`` are
    called as ever, by all ranks. torch's own would see the overflows of its rank only, so that scales drift apart
    and some stages step while others do not.

    Parameters
    ----------
    pipe : Pipeline
    **options
        As for `torch.amp.GradScaler`, without the device.
    """

    @typed
    def __init__(self, pipe: Pipeline, **options: Any) -> None:
        try:
            super().__init__(pipe.device.type, **options)
            if self._enabled:
                self._lazy_init_scale_growth_tracker(pipe.device)
        except (AssertionError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"torch's GradScaler does not take these options: {error}") from error
        self._pipe = pipe

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Unscale this rank's gradients, then tell and learn whether any rank found one that is not finite."""
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        anywhere = self._pipe.sum_over_ranks(sum(float(tensor) for tensor in found.values()))
        answer = {device: torch.zeros_like(tensor) for device, tensor in found.items()}
        answer[found_inf.device] = found_inf.new_full((), float(anywhere > 0))
        return answer
