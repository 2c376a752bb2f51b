"""A footprint is what every piece of a model holds for its backward, and how far above that it climbs."""

from dataclasses import dataclass
from itertools import accumulate
from typing import TypedDict

from torch import nn

from autopipe.profiler.layers import Chain, Example, Sweep
from autopipe.profiler.memory import Storage
from autopipe.profiler.residents import Residents, watch_step
from autopipe.recorder.exhaustion import is_out_of_memory


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Bytes of one piece, or of the loss: what it saves, and how far its two segments climb above what is kept.

    ``ending_transient_bytes`` is the backward's climb where the piece ends a stage: received gradients live to its end.
    """

    saved_bytes: int
    forward_transient_bytes: int
    transient_bytes: int
    ending_transient_bytes: int


class CostBytes(TypedDict):
    """The fields of a `Cost` that are bytes."""

    saved_bytes: int
    saved_recompute_bytes: int | None
    transient_bytes: int
    transient_recompute_bytes: int | None
    ending_transient_bytes: int
    ending_transient_recompute_bytes: int | None
    forward_transient_bytes: int
    forward_transient_recompute_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory of a chain at one micro-batch size.

    Attributes
    ----------
    holdings : tuple of Holding
        By piece, the last one of the loss. Saved are the storages that the piece makes and itself saves, and
        those that nothing but it can account for; a transient is the peak above all that the piece and those
        before it keep, without values and gradients that wait for other pieces.
    recomputed : tuple of Holding or None
        The same where every piece recomputes that can; None for those that cannot, and for the loss.
    saved_at : dict
        Name of a crossing value -> the first piece after its maker that saves its storage.
    maker_saves : frozenset of str
        The crossing values that their makers save: they are among what these save.
    value_bytes, storage_bytes : dict
        Name of a crossing value -> its bytes, and what it keeps alive: 0 where an earlier value does.
    readers : dict
        Name of a crossing value -> the pieces that read its storage under any name, ascending.
    gradient_bytes : dict
        Name of a crossing value -> the storage that its gradient keeps alive while backwards of other pieces
        run between those of its reader and its maker, 0 where none do.
    """

    holdings: tuple[Holding, ...]
    recomputed: tuple[Holding | None, ...]
    saved_at: dict[str, int]
    maker_saves: frozenset[str]
    value_bytes: dict[str, int]
    storage_bytes: dict[str, int]
    readers: dict[str, tuple[int, ...]]
    gradient_bytes: dict[str, int]

    def cost_bytes(self, index: int) -> CostBytes:
        """Return the bytes of piece ``index`` (the loss: one past the last), without recompute and with it."""
        held, again = self.holdings[index], self.recomputed[index]
        return CostBytes(
            saved_bytes=held.saved_bytes,
            saved_recompute_bytes=None if again is None else again.saved_bytes,
            transient_bytes=held.transient_bytes,
            transient_recompute_bytes=None if again is None else again.transient_bytes,
            ending_transient_bytes=held.ending_transient_bytes,
            ending_transient_recompute_bytes=None if again is None else again.ending_transient_bytes,
            forward_transient_bytes=held.forward_transient_bytes,
            forward_transient_recompute_bytes=None if again is None else again.forward_transient_bytes,
        )


def measure_footprint(chain: Chain, example: Example, model: nn.Module) -> Footprint:
    """Return the footprint of ``chain`` from a step without recompute and one with; gradients must be there before.

    Parameters
    ----------
    model : nn.Module
        Owner of the parameters and buffers: what it holds at the turn is nobody's saved memory.
    """
    chain.wrote.clear()
    plain = watch_step(chain, example, model)
    books = _Books(plain, len(chain.pieces), frozenset())
    able, again = _recompute_all(chain, example, model, _able(chain, plain))
    again_books = _Books(again, len(chain.pieces), able, without=books)
    return Footprint(
        holdings=books.holdings(),
        recomputed=tuple(one if index in able else None for index, one in enumerate(again_books.holdings())),
        saved_at=books.saved_at,
        maker_saves=frozenset(books.maker_saves),
        value_bytes=plain.value_bytes,
        storage_bytes=plain.storage_bytes,
        readers={name: tuple(sorted(readers)) for name, readers in plain.readers.items()},
        gradient_bytes=plain.gradient_bytes,
    )


def _able(chain: Chain, plain: Residents) -> frozenset[int]:
    """Return the pieces that can recompute: one layer, with a backward, that leaves alone what it reads."""
    return frozenset(
        index
        for index, piece in enumerate(chain.pieces)
        if piece.end == piece.begin + 1 and (Sweep.BACKWARD, index) in plain.segments and index not in chain.wrote
    )


def _recompute_all(
    chain: Chain, example: Example, model: nn.Module, able: frozenset[int]
) -> tuple[frozenset[int], Residents]:
    """Return the pieces that did recompute, and what resided while they did."""
    while True:
        try:
            return able, watch_step(chain, example, model, able)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            # A second run that differs from the first, for example: that piece cannot recompute.
            _, failed = chain.position
            if failed not in able:
                raise
            able -= {failed}


class _Books:
    """Every storage that is alive at the turn is booked to the piece that saves it, or to the value that carries it.

    Parameters
    ----------
    recompute : frozenset of int
        The pieces that recompute: they keep the values that they read, whatever they save.
    without : _Books, optional
        The same step without recompute.
    """

    def __init__(
        self, found: Residents, pieces: int, recompute: frozenset[int], without: "_Books | None" = None
    ) -> None:
        self._found = found
        self._loss = pieces
        self._recompute = recompute
        self._kept_from: dict[int, int] = {}
        self._saved = [0] * (pieces + 1)
        self._carried = [0] * (pieces + 1)
        self.saved_at: dict[str, int] = {}
        self.maker_saves: set[str] = set()
        for entry in found.at_turn:
            self._book(entry)
        if without is not None:
            # What the last piece and the loss both saved was the piece's, and is the loss's alone if it recomputes.
            self._saved[pieces - 1] += self._saved[pieces] - without._saved[pieces]
            self._saved[pieces] = without._saved[pieces]
        self._reached = list(accumulate(map(sum, zip(self._saved, self._carried, strict=True))))

    def _book(self, entry: Storage) -> None:
        """Book one storage.

        The loss is always with the last piece, so a value that only the loss saves is kept from that piece on.
        What nobody was seen to save (the loss itself, what a custom function keeps) is its maker's.
        """
        name = entry.carriers[0] if entry.carriers else ""
        if self._found.makers.get(name) != entry.maker:
            keeper = min(entry.savers, default=entry.maker)
            self._saved[keeper] += entry.size
            self._kept_from[id(entry)] = keeper
            return
        later = {min(saver, self._loss - 1) for saver in entry.savers if saver > entry.maker}
        if later:
            self.saved_at[name] = min(later)
        keepers = later | (self._recompute & self._found.readers[name])
        if entry.maker in entry.savers or not keepers:
            self.maker_saves.add(name)
            self._saved[entry.maker] += entry.size
            self._kept_from[id(entry)] = entry.maker
        else:
            self._carried[min(keepers)] += entry.size
            self._kept_from[id(entry)] = min(keepers)

    def holdings(self) -> tuple[Holding, ...]:
        """Return what every piece and the loss hold."""
        return tuple(
            Holding(
                saved_bytes=saved,
                forward_transient_bytes=self._climb(Sweep.FORWARD, index),
                transient_bytes=self._climb(Sweep.BACKWARD, index),
                ending_transient_bytes=self._climb(Sweep.BACKWARD, index, ends_stage=True),
            )
            for index, saved in enumerate(self._saved)
        )

    def _climb(self, sweep: Sweep, index: int, *, ends_stage: bool = False) -> int:
        segment = self._found.segments.get((sweep, index))
        if segment is None:
            return 0
        # A storage that this piece or an earlier one keeps does not only wait.
        waiting = sum(entry.size for entry in segment.passing if self._kept_from.get(id(entry), self._loss + 1) > index)
        peak_bytes = segment.held_peak_bytes if ends_stage else segment.peak_bytes
        return max(0, peak_bytes - self._reached[index] - waiting)
