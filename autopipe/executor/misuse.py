"""Misuse: a call of the pipeline whose arguments are not those that the model was recorded with, in a sentence."""

import inspect
from typing import Any

from torch import nn

from autopipe.errors import InputError


def misuse(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InputError | None:
    """Return what is wrong with a call of the first stage, None if its arguments fit.

    Parameters
    ----------
    module : nn.Module
        The first stage, which takes the arguments that the model was recorded with.
    args, kwargs
        What it was called with.
    """
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        pass
    else:
        return None
    names = tuple(signature.parameters)
    recorded = f"the model was recorded with {_listed(names)}"
    if len(args) > len(names):
        return InputError(
            f"{recorded}, and {len(args)} arguments came without a name. A target goes to the loss function by name: "
            "pipe.step(x, target=y)."
        )
    given = {*names[: len(args)], *kwargs}
    missing = [n for n, p in signature.parameters.items() if n not in given and p.default is inspect.Parameter.empty]
    if missing:
        return InputError(
            f"{recorded}, and this call lacks {', '.join(missing)}: step, evaluate and predict all take what the "
            "example had, so pass it here too. A prediction "
            "without is the plain model's, with pipe.full_state_dict()."
        )
    other = [name for name in kwargs if name not in names] or [name for name in kwargs if name in names[: len(args)]]
    return InputError(f"{recorded}, and this call gives {', '.join(other)} beside it: leave it out, or record with it.")


def _listed(names: tuple[str, ...]) -> str:
    return f"the argument{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else "no argument"
