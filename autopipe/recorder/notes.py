"""What one recorded run knows of each fx node: where it happened, what it made, what it wrote."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

NOTE = "autopipe"


@dataclass(frozen=True, kw_only=True)
class Note:
    """Facts of one node.

    ``owner`` is the path of the innermost open module; ``is_value`` tells whether the node makes a tensor or
    a plain value (what may cross a cut), ``storage`` identifies the memory of a tensor, ``writes`` the
    memories that the node changed in place, ``is_tainted`` a tensor whose shape depends on values,
    ``is_constant`` one that depends on neither inputs nor parameters nor chance, and ``draws`` tells whether the
    node drew random numbers.
    """

    owner: str
    is_value: bool = True
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    bytes: int = 0
    requires_grad: bool = False
    storage: int | None = None
    writes: frozenset[int] = frozenset()
    is_tainted: bool = False
    is_constant: bool = False
    draws: bool = False


def note_of(node: fx.Node) -> Note:
    """Return the note on ``node``."""
    return node.meta[NOTE]


def describe(note: Note, value: object) -> Note:
    """Return ``note`` with the facts of what its node made."""
    if not isinstance(value, Tensor):
        return replace(note, is_value=value is None or isinstance(value, (bool, int, float, complex, str)))
    return replace(
        note,
        is_value=value.layout is torch.strided and not value.is_nested,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        bytes=value.numel() * value.element_size(),
        requires_grad=value.requires_grad,
        storage=memory(value),
    )


def memory(tensor: Tensor) -> int | None:
    """Return what identifies the memory of a tensor: equal for views of each other; None where it has none."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def versions(values: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Return each tensor with the count of in-place writes to it so far."""
    return [(value, value._version) for value in values if not value.is_inference()]


def written(before: Iterable[tuple[Tensor, int]]) -> frozenset[int]:
    """Return the memories of those tensors that were written since `versions` counted."""
    memories = (memory(value) for value, version in before if value._version != version)
    return frozenset(identity for identity in memories if identity is not None)
