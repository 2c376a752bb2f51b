"""The loss of a micro-batch: the user's function of output and target, or what the model itself returns."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autopipe.errors import InputError

LossFunction = Callable[..., Tensor]


def check_loss(loss_fn: LossFunction | None) -> None:
    """Check that a loss has no weights of its own: no stage holds them, so no rank would train them.

    Raises
    ------
    InputError
        If it has.
    """
    trainable = [n for n, p in loss_fn.named_parameters() if p.requires_grad] if isinstance(loss_fn, nn.Module) else []
    if trainable:
        raise InputError(
            f"the loss {type(loss_fn).__name__} has parameters of its own ({', '.join(trainable)}), which would not be "
            "trained: make the loss part of the model (a forward that takes the targets and returns the loss)."
        )


def resolve_loss(loss_fn: LossFunction | None, output: Any, target: Any = None) -> Tensor:
    """Return the scalar loss of one micro-batch.

    With ``loss_fn`` it is ``loss_fn(output, target)`` (``loss_fn(output)`` where no target is given).
    Without, it is the output's ``loss`` (attribute or key) or the output itself when that is a scalar.

    Raises
    ------
    InputError
        If the result is not one floating-point number, or the function needs a target and none is given.
    """
    loss: Any
    if loss_fn is not None:
        if target is None and not _takes_output_alone(loss_fn):
            raise InputError(
                f"the loss function {_name(loss_fn)} takes a target beside the output, and none was given: pass it by "
                "name, as in pipe.step(x, target=y)."
            )
        loss = loss_fn(output) if target is None else loss_fn(output, target)
        origin = f"loss function {_name(loss_fn)}"
    else:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
        origin = f"model's own output ({type(output).__name__})"
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(
            f"the {origin} gives {what} as loss, and training needs one floating-point number. "
            "Pass loss_fn=, a function of (output, target) that returns a scalar tensor."
        )
    return loss.reshape(())


def mean_output(output: Any, target: Any = None) -> Tensor:
    """Return the mean of the output's first floating-point tensor: a stand-in loss for measuring a model."""
    for leaf in pytree.tree_leaves(_fields(output)):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.mean()
    raise InputError("the model's output holds no floating-point tensor to take a loss of: pass loss_fn=.")


def _name(loss_fn: LossFunction) -> str:
    return getattr(loss_fn, "__name__", type(loss_fn).__name__)


def _takes_output_alone(loss_fn: LossFunction) -> bool:
    """Tell whether a loss can be called without a target; True where its signature is not known."""
    try:
        signature = inspect.signature(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def _fields(output: Any) -> Any:
    return output if isinstance(output, (Tensor, dict, list, tuple)) else getattr(output, "__dict__", output)
