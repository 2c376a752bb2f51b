"""What a step is asked for: the model's arguments, the targets, how the loss counts, what is to come back."""

from dataclasses import dataclass
from typing import Any

from autopipe.errors import InputError


class Arguments:
    """The model's own arguments in one object: where a name of theirs is one that `Pipeline.step` keeps.

    ``pipe.step(Arguments(x, scale=2.0), target=y)`` calls the model with ``(x, scale=2.0)``. It is an example too:
    one with both positional and keyword arguments.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


@dataclass(frozen=True)
class MicroBatches:
    """An argument, target or weight that is cut already: one item per micro-batch, of any sizes and lengths.

    Parameters
    ----------
    items : sequence
        As many as in every other `MicroBatches` of the same step.
    """

    items: tuple[Any, ...]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "items", tuple(self.items))
        except TypeError as error:
            raise InputError(f"MicroBatches takes a sequence, one item per micro-batch: {error}.") from None
        if not self.items:
            raise InputError("MicroBatches holds no item: give it one per micro-batch.")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One step: what `Pipeline.step`, ``evaluate`` or ``predict`` was called with.

    ``setting`` is what else the shapes and dtypes inside the model may depend on: autocast, training or evaluation.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None
    weight: Any = None
    scale: float = 1.0
    training: bool = False
    wants_loss: bool = True
    wants_outputs: bool = False
    setting: tuple[Any, ...] = ()


def unpacked(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the args and kwargs of a call, out of `Arguments` where they came in one."""
    if not any(isinstance(value, Arguments) for value in inputs):
        return inputs, keywords
    if len(inputs) > 1 or keywords:
        raise InputError("Arguments holds all that the model takes: pass it alone, with the rest inside it.")
    return inputs[0].args, inputs[0].kwargs
