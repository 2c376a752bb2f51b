"""A checkpoint on disk is opened, looked into, and read: the model's tensors, and what trains them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from autopipe.checkpoints import tensors
from autopipe.checkpoints.folder import DOCUMENT, find
from autopipe.checkpoints.optimizers import NamedState
from autopipe.checkpoints.packing import unpack
from autopipe.documents.checkpoint import Checkpoint
from autopipe.documents.files import load
from autopipe.errors import DocumentError, MismatchError

TRAINING = "training.pt"
MODEL, OPTIMIZER = "model.", "optimizer.state."


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What was read: the model's tensors under the names asked for, and the state of the optimizers."""

    model: dict[str, Tensor]
    optimizer: NamedState


class Saved:
    """A whole checkpoint: ``folder``, or the newest one in it.

    Attributes
    ----------
    folder : Path
    document : Checkpoint
    training : dict
        ``groups`` and ``rest`` of the optimizers, ``scheduler``, ``scaler``; ``data`` and ``random`` by replica.

    Raises
    ------
    DocumentError
        If there is none, or it is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = find(folder)
        self.document = load(self.folder / DOCUMENT, Checkpoint)
        try:
            content = (self.folder / TRAINING).read_bytes()
        except OSError as error:
            raise DocumentError(f"cannot read {self.folder / TRAINING}: {error.strerror}.") from error
        self.training: dict[str, Any] = unpack(content, self.folder / TRAINING)
        if not _is_training(self.training):
            raise DocumentError(f"{self.folder / TRAINING} holds something else: it was not written by a save.")

    @cached_property
    def index(self) -> dict[str, TensorStorageMetadata]:
        """Shape and dtype of every tensor, by its name on disk."""
        return tensors.read_index(self.folder)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model's parameters and buffers, each once."""
        return tuple(name.removeprefix(MODEL) for name in self.index if name.startswith(MODEL))

    def read(self, wanted: Mapping[str, Tensor], *, optimizer_of: Iterable[str] = ()) -> Contents:
        """Return the model's tensors ``wanted``, and optimizer state, on the CPU; of a DTensor, its local part.

        Parameters
        ----------
        wanted : mapping
            Any name of a tensor -> the tensor that it is for.
        optimizer_of : iterable of str
            The names of the parameters whose optimizer state is wanted.

        Raises
        ------
        MismatchError
            If a name is missing, or a shape differs.
        """
        homes = {name: home for name, tensor in wanted.items() if (home := self._home(name, tensor)) is not None}
        targets = {home: _empty(self.index[home], wanted[name]) for name, home in homes.items()}
        aliases = self.document.aliases
        states: dict[str, str] = {}
        canonical = {aliases.get(name, name): name for name in optimizer_of}
        for key in self.index:
            name, _, short = key.removeprefix(OPTIMIZER).rpartition(".")
            if key.startswith(OPTIMIZER) and name in canonical:
                states[f"{canonical[name]}.{short}"] = key
                targets[key] = _empty(self.index[key], wanted.get(canonical[name]))
        tensors.read(targets, self.folder)
        groups = [
            {**group, "names": [canonical.get(name, name) for name in group["names"]]}
            for group in self.training["groups"]
        ]
        rest = {canonical[name]: entries for name, entries in self.training["rest"].items() if name in canonical}
        return Contents(
            model={name: targets[home] for name, home in homes.items()},
            optimizer=NamedState(tensors={n: targets[key] for n, key in states.items()}, rest=rest, groups=groups),
        )

    def check_names(self, known: Iterable[str]) -> None:
        """Return if all that was saved has a name in ``known``.

        Raises
        ------
        MismatchError
            If not: it is the state of another model.
        """
        known = set(known)
        backwards: dict[str, list[str]] = {}
        for alias, name in self.document.aliases.items():
            backwards.setdefault(name, []).append(alias)
        for name in self.names:
            if known.isdisjoint((name, *backwards.get(name, ()))):
                raise MismatchError(
                    f"{self.folder} has {name}, which the model lacks: it was saved from another model "
                    f"({self.document.model}). Build the model as it was then."
                )

    def whole(self) -> Contents:
        """Return all of it, under the names on disk."""
        wanted = {name: torch.empty(self.index[MODEL + name].size, device="meta") for name in self.names}
        return self.read(wanted, optimizer_of=self.names)

    def _home(self, name: str, tensor: Tensor) -> str | None:
        """Return the name on disk of what the model calls ``name``; None for what no stage read."""
        home = MODEL + self.document.aliases.get(name, name)
        if home not in self.index:
            if name in self.document.unread:
                return None
            raise MismatchError(
                f"{self.folder} has no {name}, which the model needs: it was saved from another model "
                f"({self.document.model}). Build the model as it was then."
            )
        if self.index[home].size != tensor.shape:
            raise MismatchError(
                f"{name} has shape {tuple(self.index[home].size)} in {self.folder} and {tuple(tensor.shape)} in the "
                "model: build the model as it was when this was saved."
            )
        return home


def _is_training(found: dict[str, Any]) -> bool:
    """Return whether ``found`` is built as a save builds it; what schedulers and loaders put there is theirs."""
    kinds = {"rest": dict, "groups": list, "data": list, "random": list}
    if not all(isinstance(found.get(key), kind) for key, kind in kinds.items()) or not found["data"]:
        return False
    group = {"optimizer": str, "names": list, "options": dict}
    return (
        {"scheduler", "scaler"} <= found.keys()
        and isinstance(found["scheduler"], list | None)
        and all(isinstance(row, dict) for row in (*found["groups"], *found["rest"].values()))
        and all(isinstance(row.get(key), kind) for row in found["groups"] for key, kind in group.items())
        and all(isinstance(name, str) for row in found["groups"] for name in row["names"])
        and all(isinstance(state, Tensor) for state in found["random"])
    )


def _empty(entry: TensorStorageMetadata, like: Tensor | None) -> Tensor:
    """Return where to read an entry: laid out, and divided, as ``like`` where that has the entry's shape."""
    dtype = entry.properties.dtype
    if like is None or like.shape != entry.size:
        return torch.empty(entry.size, dtype=dtype)
    return torch.empty_like(like, dtype=dtype, device=None if isinstance(like, DTensor) else "cpu")
