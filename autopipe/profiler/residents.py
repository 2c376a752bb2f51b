"""What resides in memory is noted segment by segment while a chain runs, and at the turn who keeps what."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from autopipe.profiler.layers import Chain, Example, Sweep
from autopipe.profiler.memory import Storage, StorageLedger, storage_key, storages, tensor_bytes


@dataclass(kw_only=True)
class Segment:
    """The peak of a segment, and the storages that were alive in it only because others wait for them.

    ``held_peak_bytes`` is the peak that it would have had if the gradients that it begins with lived to its end.
    """

    peak_bytes: int
    held_peak_bytes: int
    passing: list[Storage]


class Residents:
    """Watches one step of a chain.

    Attributes
    ----------
    segments : dict
        (sweep, piece) -> `Segment`; the loss is one past the last piece.
    at_turn : list of Storage
        What is alive between forward and backward, without what the model itself owns and nobody saved.
    value_bytes, storage_bytes : dict
        Name of a crossing value -> its bytes, and the storage that it is the first to carry out of its maker.
    gradient_bytes : dict
        Name of a crossing value -> the most that its gradient kept alive while it waited.
    readers : dict
        Name of a crossing value -> the pieces that read its storage under any name, ascending.
    makers : dict
        Name of a value -> the piece that made it.
    """

    def __init__(self, chain: Chain, ledger: StorageLedger, model: nn.Module) -> None:
        self._ledger = ledger
        self._model = model
        self._consumers: dict[str, list[int]] = {}
        for index, piece in enumerate(chain.pieces):
            for name in piece.inputs:
                self._consumers.setdefault(name, []).append(index)
        self._turned = False
        self.segments: dict[tuple[Sweep, int], Segment] = {}
        self.at_turn: list[Storage] = []
        self.value_bytes = dict.fromkeys(sorted(self._consumers), 0)
        self.storage_bytes = dict(self.value_bytes)
        self.gradient_bytes = dict(self.value_bytes)
        self.readers = {name: set(readers) for name, readers in self._consumers.items()}
        self.makers: dict[str, int] = {}

    def before(self, sweep: Sweep, index: int, passing: dict[str, Any], received: dict[str, Any]) -> None:
        """Begin a segment with a peak of its own."""
        if sweep is Sweep.BACKWARD:
            if not self._turned:
                self._turn()
            for name, gradient in passing.items():
                held = sum(storage.nbytes() for storage in storages(gradient))
                self.gradient_bytes[name] = max(self.gradient_bytes[name], held)
        keys = {storage_key(storage): None for storage in storages(list(passing.values()))}
        waiting = [self._ledger.living[key] for key in keys if key in self._ledger.living]
        self.segments[sweep, index] = Segment(peak_bytes=0, held_peak_bytes=0, passing=waiting)
        self._ledger.owner = index
        self._ledger.reset_peak(holding=received)

    def after(self, sweep: Sweep, index: int) -> None:
        """Note the segment's peaks."""
        segment = self.segments[sweep, index]
        segment.peak_bytes, segment.held_peak_bytes = self._ledger.peak_bytes, self._ledger.held_peak_bytes

    def made(self, index: int, values: dict[str, Any]) -> None:
        """Note which storages the crossing ones of ``values`` carry out of piece ``index``."""
        for name, value in values.items():
            if name not in self._consumers or not isinstance(value, Tensor):
                continue
            self.makers[name] = index
            self.value_bytes[name] = tensor_bytes(value)
            # Of a tensor of tensors the first storage is carried; the others are booked to their makers or savers.
            entry = self._ledger.living.get(storage_key(next(storages(value))))
            if entry is None:
                continue
            if entry.carriers:
                self.readers[entry.carriers[0]] |= self.readers[name]
            elif entry.maker == index:
                self.storage_bytes[name] = entry.size
            entry.carriers.append(name)

    def _turn(self) -> None:
        self._turned = True
        mine = [*self._model.parameters(), *self._model.buffers()]
        owned = {storage_key(storage) for storage in storages(mine)}
        self.at_turn = [entry for key, entry in self._ledger.living.items() if entry.savers or key not in owned]


def watch_step(chain: Chain, example: Example, model: nn.Module, recompute: Collection[int] = ()) -> Residents:
    """Return what resided in memory during one step of ``chain``; gradients must be allocated before.

    Parameters
    ----------
    model : nn.Module
        Owner of the parameters and buffers: what it holds at the turn is nobody's saved memory.
    recompute : collection of int
        The pieces that recompute.
    """
    ledger = StorageLedger()
    found = Residents(chain, ledger, model)
    with ledger:
        chain.step(example, found, recompute=recompute)
    return found
