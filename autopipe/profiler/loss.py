"""Which loss a model is measured with: the user's, the model's own, or a stand-in."""

from typing import Any

import torch
from torch import Tensor, nn

from autopipe.errors import InputError
from autopipe.profiler.layers import Example, Loss
from autopipe.stages.loss import LossFunction, mean_output, resolve_loss


def choose_loss(loss_fn: LossFunction | None, model: nn.Module, example: Example) -> tuple[Loss, str]:
    """Return the loss as a function of (output, target), and its name.

    Without ``loss_fn`` the model runs once: its output's own ``loss``, or the output if that is a scalar;
    else the mean of the first floating-point tensor of the output stands in.
    """
    if loss_fn is not None:
        given = loss_fn

        def users(output: Any, target: Any) -> Tensor:
            return resolve_loss(given, output, target)

        return users, getattr(loss_fn, "__name__", type(loss_fn).__name__)
    with torch.no_grad():
        output = model(*example.args, **example.kwargs)
    try:
        resolve_loss(None, output)
    except InputError:
        return mean_output, "mean of the output"
    return _own, "the model's own loss"


def _own(output: Any, target: Any) -> Tensor:
    return resolve_loss(None, output, target)


class OwnLoss:
    """The model's own loss, or what stands in for it: the output tells which, when the loss is first taken.

    Attributes
    ----------
    name : str
        As `choose_loss` names it, once it was called.
    """

    name = "the model's own loss"

    def __call__(self, output: Any, target: Any) -> Tensor:
        """Return the loss of ``output``."""
        try:
            return resolve_loss(None, output)
        except InputError:
            self.name = "mean of the output"
            return mean_output(output, target)
