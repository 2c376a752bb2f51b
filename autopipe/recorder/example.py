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
    ``dims`` says in which dimension an argument's tensors carry the batch where that is not their first, ``whole``
    which arguments do not, and ``output_dim`` where the output does; ``batch_size`` is that size of the first tensor,
    None where there is none to vary; ``length`` is the other one of the first two sizes of the first tensor that is a
    batch of sequences: of numbers (2 dimensions, integers) or of vectors (3 dimensions).
    """

    values: Mapping[str, Any]
    keywords: Mapping[str, str]
    positional: int
    batch_size: int | None
    length: int | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    output_dim: int = 0

    @property
    def first(self) -> tuple[str, Tensor] | None:
        """The first tensor that carries the batch, and the name of its argument."""
        found = ((name, tensor) for name, value in self.values.items() for tensor in tensors(value))
        return next(((name, tensor) for name, tensor in found if name not in self.whole), None)

    def dim(self, name: str) -> int:
        """Return the dimension in which the tensors of an argument carry the batch."""
        return self.dims.get(name, 0)

    def carries(self, name: str, tensor: Tensor) -> bool:
        """Tell whether a tensor of an argument carries the batch."""
        dim = self.dim(name)
        return name not in self.whole and tensor.dim() > dim and tensor.shape[dim] == self.batch_size

    def change(self, change: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
        """Return the values with every tensor changed: ``change`` is given its argument's name too."""
        return {
            name: map_tensors(value, lambda tensor, name=name: change(name, tensor))  # type: ignore[misc]
            for name, value in self.values.items()
        }

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
    return sized(
        Example(
            values={name: own(value) for name, value in values.items()},
            keywords=keywords,
            positional=len(bound.args),
            batch_size=None,
        )
    )


def sized(example: Example) -> Example:
    """Return the example with the batch size and the length that its tensors have in its dimensions."""
    if example.first is None:
        return dataclasses.replace(example, batch_size=None, length=None)
    name, tensor = example.first
    dim = example.dim(name)
    size = tensor.shape[dim] if tensor.dim() > dim and tensor.shape[dim] > 0 else None
    example = dataclasses.replace(example, batch_size=size)
    sequences = (
        tensor.shape[1 - example.dim(name)]
        for name, value in example.values.items()
        for tensor in tensors(value)
        if example.dim(name) < 2 and is_sequence(tensor) and example.carries(name, tensor)
    )
    return dataclasses.replace(example, length=next(sequences, None))


def is_sequence(tensor: Tensor) -> bool:
    """Tell whether a tensor looks like a batch of sequences, of numbers or of vectors."""
    return tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point())


def with_batch(example: Example, batch_size: int) -> Example:
    """Return the example at another batch size: its samples cut off or repeated."""
    if example.batch_size is None or example.batch_size == batch_size:
        return dataclasses.replace(example, values={name: own(value) for name, value in example.values.items()})
    before = example.batch_size

    def resize(name: str, tensor: Tensor) -> Tensor:
        if not example.carries(name, tensor):
            return own(tensor)
        index = torch.arange(batch_size, device=tensor.device) % before
        return tensor.detach().index_select(example.dim(name), index).requires_grad_(tensor.requires_grad)

    return dataclasses.replace(example, values=example.change(resize), batch_size=batch_size)


def with_length(example: Example, length: int) -> Example:
    """Return the example with its sequences cut off at ``length``: in each tensor whose first sizes are theirs."""

    def cut(name: str, tensor: Tensor) -> Tensor:
        other = 1 - example.dim(name)
        if other < 0 or tensor.dim() < 2 or not example.carries(name, tensor) or tensor.shape[other] != example.length:
            return own(tensor)
        return own(tensor.detach().narrow(other, 0, length))

    return dataclasses.replace(example, values=example.change(cut), length=length)


def target_dim_of(target: Any, samples: int, *, given: int | None, output_dim: int) -> int:
    """Return in which dimension targets or weights carry their ``samples``.

    That is the one ``given``, else the output's where they have that size there, else the first.

    Raises
    ------
    InputError
        If more than one dimension could be meant.
    """
    if given is not None or output_dim == 0:
        return given or 0
    shape = next((tuple(tensor.shape) for tensor in tensors(target) if tensor.dim() > 0), ())
    fitting = [dim for dim in (0, output_dim) if shape[dim : dim + 1] == (samples,)]
    if len(fitting) > 1:
        raise InputError(
            f"a target or weight of shape {shape} could carry the {samples} samples in dimension 0, or as the output "
            f"does in {output_dim}: say which with target_dim=."
        )
    return fitting[0] if fitting else 0


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


def _placeholder(name: str, taken: Mapping[str, Any]) -> str:
    safe = name if name.isidentifier() and not keyword.iskeyword(name) else "argument"
    while safe in taken:
        safe += "_"
    return safe
