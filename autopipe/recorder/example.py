"""The example a model is recorded on: bound to the forward's parameters, in objects of its own, at any batch size."""

import dataclasses
import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.errors import InputError
from autopipe.recorder.objects import attributes_with_tensors, with_attributes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """The arguments of one call: ``values`` by placeholder name, in the order of the forward's signature.

    ``keywords`` gives the name by which the model takes each; ``positional`` says how many are passed by position;
    ``batch_size`` is the leading size of the first tensor, None where there is none to vary; ``length`` is the
    second size of the first tensor that is a batch of sequences: of numbers (2 dimensions, integers) or of
    vectors (3 dimensions).
    """

    values: Mapping[str, Any]
    keywords: Mapping[str, str]
    positional: int
    batch_size: int | None
    length: int | None = None

    def call_args(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the args and kwargs of the call."""
        items = list(self.values.items())
        args = tuple(value for _, value in items[: self.positional])
        return args, {self.keywords[name]: value for name, value in items[self.positional :]}


def bind(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Example:
    """Return the example of a call ``model(*args, **kwargs)``.

    Raises
    ------
    InputError
        If the forward does not take such arguments.
    """
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"the example does not fit {type(model).__name__}.forward{signature}: {error}. Pass its arguments as "
            "args= and kwargs=."
        ) from None
    values: dict[str, Any] = {}
    keywords: dict[str, str] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            items = {f"{name}_{index}": item for index, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            items = value
        else:
            items = {name: value}
        for key, item in items.items():
            placeholder = _placeholder(key, values)
            values[placeholder], keywords[placeholder] = item, key
    return Example(
        values={name: own(value) for name, value in values.items()},
        keywords=keywords,
        positional=len(bound.args),
        batch_size=_batch_size(values),
        length=_length(values),
    )


def with_batch(example: Example, batch_size: int) -> Example:
    """Return the example at another batch size: its samples cut off or repeated.

    A tensor carries the batch if its leading size is that of the first tensor.
    """
    if example.batch_size is None or example.batch_size == batch_size:
        return dataclasses.replace(example, values={name: own(value) for name, value in example.values.items()})
    before = example.batch_size

    def resize(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != before:
            return own(tensor)
        index = torch.arange(batch_size, device=tensor.device) % before
        return tensor.detach()[index].requires_grad_(tensor.requires_grad)

    values = {name: map_tensors(value, resize) for name, value in example.values.items()}
    return dataclasses.replace(example, values=values, batch_size=batch_size)


def with_length(example: Example, length: int) -> Example:
    """Return the example with its sequences cut off at ``length``: in each tensor whose first sizes are theirs."""
    before = (example.batch_size, example.length)

    def cut(tensor: Tensor) -> Tensor:
        return own(tensor[:, :length].detach() if tensor.shape[:2] == before else tensor)

    values = {name: map_tensors(value, cut) for name, value in example.values.items()}
    return dataclasses.replace(example, values=values, length=length)


def own(value: Any) -> Any:
    """Return ``value`` with every tensor cloned and every container new, so that each place has its own object."""
    return map_tensors(value, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with ``change`` applied to every tensor in its containers, dataclasses and plain objects."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, change) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: map_tensors(item, change) for name, item in fields.items()})
    if isinstance(value, dict):
        changed = {key: map_tensors(item, change) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(changed)
    if (attributes := attributes_with_tensors(value)) is not None:
        return with_attributes(type(value), {name: map_tensors(item, change) for name, item in attributes.items()})
    return value


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in ``value``'s containers, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def _batch_size(values: Mapping[str, Any]) -> int | None:
    for tensor in tensors(dict(values)):
        return tensor.shape[0] if tensor.dim() > 0 and tensor.shape[0] > 0 else None
    return None


def _length(values: Mapping[str, Any]) -> int | None:
    for tensor in tensors(dict(values)):
        is_sequence = tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point())
        if is_sequence and tensor.shape[0] == _batch_size(values):
            return tensor.shape[1]
    return None


def _placeholder(name: str, taken: Mapping[str, Any]) -> str:
    safe = name if name.isidentifier() and not keyword.iskeyword(name) else "argument"
    while safe in taken:
        safe += "_"
    return safe
