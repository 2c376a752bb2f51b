"""Live storages are counted as a model runs: what its backward needs, and the peaks on the way."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from autopipe.errors import ProfileError


@dataclass
class Storage:
    """A living storage: its bytes, its maker, and the owners whose operations saved it for backward.

    ``carriers`` are the names under which it left owners, for whoever looks on to fill in.
    """

    size: int
    maker: int
    reference: weakref.ref
    savers: set[int] = field(default_factory=set)
    carriers: list[str] = field(default_factory=list)


class StorageLedger(TorchDispatchMode):
    """Books the storages that come to life while it is active, each once, until they die.

    Storages that existed before (parameters, inputs, gradients) are not booked, whatever writes to them or
    views them. What a kernel allocates and frees inside itself is not seen.

    Attributes
    ----------
    owner : int
        Whoever runs now: storages made or saved from here on are booked to it. Set from outside.
    current_bytes, peak_bytes : int
        Bytes alive now, and the most since `reset_peak`.
    held_peak_bytes : int
        The most since then if what `reset_peak` was told to hold had not died.
    living : dict
        Storage key -> `Storage`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.owner = 0
        self.current_bytes = 0
        self.peak_bytes = 0
        self.held_peak_bytes = 0
        self._held: set[int] = set()
        self._gone_bytes = 0
        self.living: dict[int, Storage] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed)

    def reset_peak(self, *, holding: Any = ()) -> None:
        """Let the peaks begin anew from what is alive now; the tensors of ``holding`` live on in the held one."""
        self.peak_bytes = self.held_peak_bytes = self.current_bytes
        self._held = {storage_key(storage) for storage in storages(holding)}
        self._gone_bytes = 0

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._hooks.__exit__(kind, error, trace)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and book the storages that it makes."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        given = {storage_key(storage) for storage in storages((args, kwargs))}
        for storage in storages(result):
            key = storage_key(storage)
            if key not in given and key not in self.living:
                self._add(key, storage)
        return result

    def _add(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        reference = weakref.ref(storage, lambda _: self._remove(key))
        self.living[key] = Storage(size=size, maker=self.owner, reference=reference)
        self.current_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        self.held_peak_bytes = max(self.held_peak_bytes, self.current_bytes + self._gone_bytes)

    def _remove(self, key: int) -> None:
        size = self.living.pop(key).size
        self.current_bytes -= size
        if key in self._held:
            # The key may come back as that of another storage.
            self._held.remove(key)
            self._gone_bytes += size

    def _pack(self, tensor: Tensor) -> Tensor:
        for storage in storages(tensor):
            entry = self.living.get(storage_key(storage))
            if entry is not None:
                entry.savers.add(self.owner)
        # An operation that saves its own output would hold itself alive through the packed tensor.
        return tensor.detach()


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return a number that no other living storage has."""
    return storage._cdata


def storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of every tensor in ``tree``; a storage with several tensors appears for each.

    Raises
    ------
    ProfileError
        If a tensor has a layout whose storages are unknown here.
    """
    leaves: Iterable[Any] = (tree,) if isinstance(tree, Tensor) else pytree.tree_leaves(tree)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            continue
        inner = _inner_names(leaf)
        if inner:
            yield from storages([getattr(leaf, name) for name in inner])
        elif leaf.layout is torch.strided:
            yield leaf.untyped_storage()
        elif leaf.layout is torch.sparse_coo:
            yield from storages([leaf._indices(), leaf._values()])
        else:
            raise ProfileError(
                f"a tensor of layout {leaf.layout} appears in the model, and its memory cannot be counted. "
                "Use a dense tensor, or sparse_coo."
            )


def _inner_names(leaf: Any) -> Sequence[str]:
    """Return the attributes under which a tensor of tensors (a nested tensor, for example) keeps them."""
    return leaf.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(leaf) else ()


def tensor_bytes(value: Any) -> int:
    """Return the bytes that ``value`` takes when it is sent: its elements, each once; 0 for no tensor."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
