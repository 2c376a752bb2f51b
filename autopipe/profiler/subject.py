"""What a profile is asked for: a model, an example of its arguments, and what of it trains."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.documents.graph import Parameter
from autopipe.errors import ProfileError
from autopipe.profiler.layers import Example


def example_of(args: Sequence[Any] | Tensor, kwargs: dict[str, Any] | None, target: Any) -> Example:
    """Return the example as it is given to `measure` and `estimate`, where a lone tensor is the only argument."""
    return Example((args,) if isinstance(args, Tensor) else tuple(args), dict(kwargs or {}), target)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require a gradient.

    Raises
    ------
    ProfileError
        If there are none.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ProfileError(
            "no parameter of the model requires a gradient, so there is no training step to profile. "
            "Set requires_grad on those that are to be trained."
        )
    return trained


def main_dtype(parameters: Sequence[Parameter]) -> str:
    """Return the dtype that most bytes of the parameters have."""
    total: dict[str, int] = {}
    for parameter in parameters:
        if not parameter.is_buffer:
            total[parameter.dtype] = total.get(parameter.dtype, 0) + parameter.bytes
    return max(total, key=total.__getitem__)


def autocast_dtype(device: torch.device) -> str | None:
    """Return the dtype to which autocast casts on ``device`` now, None where it is off."""
    if not torch.is_autocast_enabled(device.type):
        return None
    return str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
