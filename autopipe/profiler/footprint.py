"""A footprint is what every piece of a model holds for its backward, and how far above that it climbs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from autopipe.profiler.layers import Chain, Example, Piece, Sweep
from autopipe.profiler.memory import Storage, StorageLedger, storage_key, storages, tensor_bytes


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes by piece; the last entry of each tuple is the loss.

    Attributes
    ----------
    saved_bytes : tuple of int
        Storages that the piece makes and itself saves, and those that nothing but it can account for.
    saved_at : dict
        Name of a crossing value -> the first later piece that saves its storage, if its maker does not.
    value_bytes : dict
        Name of a crossing value -> its bytes.
    gradient_bytes : dict
        Name of a crossing value -> the storage that its gradient keeps alive while backwards of other pieces
        run between those of its reader and its maker, 0 where none do.
    forward_transient_bytes, transient_bytes : tuple of int
        Peak while the forward, the backward of the piece runs, above all that it and the pieces before it
        have saved (`saved_bytes`, and the values whose `saved_at` is reached), without values and gradients
        that wait for other pieces.
    """

    saved_bytes: tuple[int, ...]
    saved_at: dict[str, int]
    value_bytes: dict[str, int]
    gradient_bytes: dict[str, int]
    forward_transient_bytes: tuple[int, ...]
    transient_bytes: tuple[int, ...]


def measure_footprint(chain: Chain, example: Example, model: nn.Module) -> Footprint:
    """Return the footprint of ``chain`` from one step; gradients must be allocated before.

    Parameters
    ----------
    model : nn.Module
        Owner of the parameters and buffers: what it holds at the end of the forward is nobody's saved memory.
    """
    ledger = StorageLedger()
    watcher = _MemoryWatcher(ledger, chain.pieces, model)
    with ledger:
        chain.step(example, watcher)
    return watcher.footprint()


@dataclass(kw_only=True)
class _Segment:
    """The peak of a segment, and the storages that were alive in it only because others wait for them."""

    peak_bytes: int
    passing: list[Storage]


class _MemoryWatcher:
    """Notes the peak of every segment, and at the turn from forward to backward who holds what."""

    def __init__(self, ledger: StorageLedger, pieces: Sequence[Piece], model: nn.Module) -> None:
        self._ledger = ledger
        self._model = model
        self._runners = len(pieces) + 1
        self._crossing = {name for piece in pieces for name in piece.inputs}
        self._segments: dict[tuple[Sweep, int], _Segment] = {}
        self._carriers: dict[int, list[str]] = {}
        self._maker: dict[str, int] = {}
        self._value_bytes: dict[str, int] = dict.fromkeys(sorted(self._crossing), 0)
        self._gradient_bytes: dict[str, int] = dict.fromkeys(sorted(self._crossing), 0)
        self._saved: list[int] = []
        self._saved_at: dict[str, int] = {}

    def before(self, sweep: Sweep, index: int, passing: dict[str, Any]) -> None:
        if sweep is Sweep.BACKWARD:
            if not self._saved:
                self._settle()
            for name, gradient in passing.items():
                held = sum(storage.nbytes() for storage in storages(gradient))
                self._gradient_bytes[name] = max(self._gradient_bytes[name], held)
        entries = {storage_key(storage): None for storage in storages(list(passing.values()))}
        waiting = [self._ledger.living[key] for key in entries if key in self._ledger.living]
        self._segments[sweep, index] = _Segment(peak_bytes=0, passing=waiting)
        self._ledger.owner = index
        self._ledger.reset_peak()

    def after(self, sweep: Sweep, index: int) -> None:
        self._segments[sweep, index].peak_bytes = self._ledger.peak_bytes

    def made(self, index: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if not isinstance(value, Tensor):
                continue
            self._value_bytes[name] = tensor_bytes(value)
            self._maker[name] = index
            for storage in storages(value):
                self._carriers.setdefault(storage_key(storage), []).append(name)

    def _settle(self) -> None:
        """Book every living storage to the piece that saves it, or to the value that carries it there.

        What lives and was not seen to be saved (the loss itself, what a custom function keeps) is its maker's.
        """
        self._saved = [0] * self._runners
        owned = {storage_key(s) for s in storages((list(self._model.parameters()), list(self._model.buffers())))}
        for key, entry in self._ledger.living.items():
            if entry.first_saver is None:
                if key in owned:
                    continue
                entry.first_saver = entry.maker
            booked = self._carry(key, entry) if entry.first_saver > entry.maker else 0
            self._saved[entry.first_saver] += entry.size - booked

    def _carry(self, key: int, entry: Storage) -> int:
        """Book a storage to the values that carry it to its saver, as far as they reach; returns the bytes booked.

        The loss is always with the last piece, so a value that only the loss saves counts from that piece on.
        """
        booked = 0
        for name in self._carriers.get(key, ()):
            size = self._value_bytes[name]
            carries = name in self._crossing and self._maker[name] == entry.maker
            if carries and name not in self._saved_at and booked + size <= entry.size:
                self._saved_at[name] = min(entry.first_saver or 0, self._runners - 2)
                booked += size
        return booked

    def footprint(self) -> Footprint:
        """Return what was noted; call it when the step is over."""
        if not self._saved:
            self._settle()
        reached = list(self._saved)
        for name, saver in self._saved_at.items():
            reached[saver] += self._value_bytes[name]
        reached = list(accumulate(reached))
        return Footprint(
            saved_bytes=tuple(self._saved),
            saved_at=self._saved_at,
            value_bytes={name: self._value_bytes[name] for name in sorted(self._crossing)},
            gradient_bytes=self._gradient_bytes,
            forward_transient_bytes=tuple(self._above(Sweep.FORWARD, i, base) for i, base in enumerate(reached)),
            transient_bytes=tuple(self._above(Sweep.BACKWARD, i, base) for i, base in enumerate(reached)),
        )

    def _above(self, sweep: Sweep, index: int, base: int) -> int:
        segment = self._segments.get((sweep, index))
        if segment is None:
            return 0
        # A storage in ``base`` already, for an earlier piece has saved it, does not only wait.
        waiting = sum(entry.size for entry in segment.passing if entry.first_saver is None or entry.first_saver > index)
        return max(0, segment.peak_bytes - base - waiting)
