"""Which calls of a recorded run draw random numbers: seen by the generators' states, or by operators' tags."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Chance:
    """Tells after each recorded call whether it drew.

    Attributes
    ----------
    draws : int
        How many calls have drawn so far.
    """

    def __init__(self) -> None:
        self.draws = 0
        self._pending = False
        self._states = _states()

    def has_drawn(self) -> bool:
        """Return whether random numbers were drawn since it was asked last."""
        states = _states()
        drawn = self._pending or any(not torch.equal(a, b) for a, b in zip(states, self._states, strict=True))
        self._states, self._pending = states, False
        self.draws += drawn
        return drawn

    def note(self) -> None:
        """Remember a draw that no generator shows: of a call without memory, or of nodes that were erased."""
        self._pending = True


class TaggedDraws(TorchDispatchMode):
    """Notes the calls of operators that draw, where tensors have no memory and generators stay as they are."""

    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at an operator's tag and call it."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_attention_without_dropout(func, args, kwargs):
            self._chance.note()
        return func(*args, **kwargs)


def _is_attention_without_dropout(func: Any, args: Any, kwargs: Any) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    if "scaled_dot_product" not in str(func) or "dropout_p" not in names:
        return False
    position = names.index("dropout_p")
    return kwargs.get("dropout_p", args[position] if position < len(args) else 0.0) == 0.0


def _states() -> tuple[Tensor, ...]:
    """Return the states of the CPU's generator and of the current accelerator's."""
    if not torch.accelerator.is_available():
        return (torch.get_rng_state(),)
    module = torch.get_device_module(torch.accelerator.current_accelerator())
    return torch.get_rng_state(), module.get_rng_state()
