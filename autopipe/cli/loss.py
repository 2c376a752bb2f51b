"""``--loss`` by name becomes a function of output and target."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from autopipe.cli.model import load
from autopipe.errors import InputError
from autopipe.stages.loss import LossFunction, mean_output, resolve_loss

if TYPE_CHECKING:
    from autopipe.cli.subject import Subject

BUILT_IN = ("cross_entropy", "mse", "output")
NEEDS_TARGET = ("cross_entropy", "mse")


def resolve(name: str | None) -> LossFunction | None:
    """Return the loss that ``name`` means; None for None.

    Raises
    ------
    InputError
        If ``name`` is none of `BUILT_IN` and names no function.
    """
    if name is None:
        return None
    if name in BUILT_IN:
        return {"cross_entropy": cross_entropy, "mse": mse, "output": output}[name]
    if ":" not in name:
        raise InputError(f"there is no loss {name!r}: choose {', '.join(BUILT_IN)}, or write package.module:function.")
    function = load(name)
    if not callable(function):
        raise InputError(f"{name} is a {type(function).__name__}: a loss is a function of (output, target).")
    loss: LossFunction = function
    return loss


def loss_to_train(subject: "Subject") -> LossFunction | None:
    """Return the loss that a profile of ``subject`` has: the one given, None for the model's own, else a stand-in."""
    from autopipe.profiler.layers import Example
    from autopipe.profiler.loss import choose_loss

    loss, _ = choose_loss(subject.loss_fn, subject.model, Example(subject.args, subject.kwargs, subject.target))
    return mean_output if loss is mean_output else subject.loss_fn


def cross_entropy(output: Any, target: Tensor) -> Tensor:
    """Return the mean cross entropy of the output's logits.

    Classes are the last dimension where the target has the shape of all the others, as in language models
    (batch, time, classes); the second one otherwise, as torch has it.
    """
    logits = tensor_of(output)
    if logits.dim() > 2 and target.shape == logits.shape[:-1]:
        return functional.cross_entropy(logits.flatten(0, -2), target.flatten())
    return functional.cross_entropy(logits, target)


def output(output: Any, target: Any = None) -> Tensor:
    """Return the loss that the model itself returns; a target has no part in it."""
    return resolve_loss(None, output)


def mse(output: Any, target: Tensor) -> Tensor:
    """Return the mean squared difference of the output and the target."""
    return functional.mse_loss(tensor_of(output), target)


def tensor_of(output: Any) -> Tensor:
    """Return the one tensor of a model's output that a loss is taken of: itself, its ``logits``, or the first.

    Raises
    ------
    InputError
        If there is none.
    """
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    for leaf in torch.utils._pytree.tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf
    raise InputError(f"the model's output, a {type(output).__name__}, holds no tensor to take a loss of.")
