"""A chain that repeats a row of identical pieces is folded: four repeats stand for all, however deep the model is.

::

    before  r0  r1  r2  ...  rn-2  rn-1  after        the chain
    before  r0  r1  -------  rn-2  rn-1  after        folded: rn-2 reads what r1 makes in the place of rn-3's values

The first repeat may save what is made before all of them, the last what is read after them; those in between are
alike, and r1 stands for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from autopipe.documents.graph import Graph
from autopipe.profiler.footprint import Footprint
from autopipe.profiler.layers import Piece

KEPT = 4


class Run(NamedTuple):
    """``repeats`` times the same ``period`` pieces, from piece ``begin`` on."""

    begin: int
    period: int
    repeats: int

    @property
    def end(self) -> int:
        """One past the last piece."""
        return self.begin + self.period * self.repeats

    @property
    def dropped(self) -> int:
        """How many pieces the folded chain lacks."""
        return self.period * (self.repeats - KEPT)

    def repeat_of(self, index: int) -> int | None:
        """Return which repeat piece ``index`` belongs to, None outside."""
        return (index - self.begin) // self.period if self.begin <= index < self.end else None


@dataclass(frozen=True)
class Folding:
    """Which pieces stand for which; ``run`` is None where nothing is folded."""

    pieces: tuple[Piece, ...]
    folded: tuple[Piece, ...]
    run: Run | None

    def stand_in(self, index: int) -> int:
        """Return the piece of the folded chain that stands for piece ``index`` of the whole one."""
        run = self.run
        if run is None or index < run.begin + 2 * run.period:
            return index
        if index >= run.end - 2 * run.period:
            return index - run.dropped
        return run.begin + run.period + (index - run.begin) % run.period

    def unfolded(self, found: Footprint) -> Footprint | None:
        """Return the footprint of the whole chain; None if something reaches further than from a repeat to the next."""
        if self.run is None:
            return found
        by_name = {}
        for index, piece in enumerate(self.pieces):
            twin = self.folded[self.stand_in(index)]
            by_name.update({name: (index, other) for name, other in zip(piece.outputs, twin.outputs, strict=True)})
        saved_at: dict[str, int] = {}
        readers: dict[str, tuple[int, ...]] = {}
        for name, (maker, twin_name) in by_name.items():
            places = {}
            for place in {*found.readers.get(twin_name, ()), *_one(found.saved_at.get(twin_name))}:
                mapped = self._places(maker, place)
                if mapped is None:
                    return None
                places[place] = mapped
            if twin_name in found.readers:
                readers[name] = tuple(sorted(index for place in found.readers[twin_name] for index in places[place]))
            if twin_name in found.saved_at:
                saved_at[name] = min(places[found.saved_at[twin_name]])

        def named(figures: Mapping[str, int]) -> dict[str, int]:
            return {name: figures[twin] for name, (_, twin) in by_name.items() if twin in figures}

        stand_ins = [*map(self.stand_in, range(len(self.pieces))), len(self.folded)]
        return replace(
            found,
            holdings=tuple(found.holdings[index] for index in stand_ins),
            recomputed=tuple(found.recomputed[index] for index in stand_ins),
            saved_at=saved_at,
            maker_saves=frozenset(name for name, (_, twin) in by_name.items() if twin in found.maker_saves),
            value_bytes=named(found.value_bytes),
            storage_bytes=named(found.storage_bytes),
            readers=readers,
            gradient_bytes=named(found.gradient_bytes),
        )

    def _places(self, maker: int, place: int) -> tuple[int, ...] | None:
        """Return the pieces for which ``place`` of the folded chain stands, seen from the whole one's ``maker``."""
        run = self.run
        assert run is not None
        offset = place - run.begin
        if not 0 <= offset < KEPT * run.period:
            whole = place if offset < 0 else place + run.dropped
            repeat = run.repeat_of(maker)
            return (whole,) if repeat is None or repeat == run.repeats - 1 else None
        kept, position = divmod(offset, run.period)
        repeat = run.repeat_of(maker)
        if repeat is None:
            if kept == 1:
                return tuple(run.begin + r * run.period + position for r in range(1, run.repeats - 2))
            return (run.begin + (kept if kept == 0 else run.repeats - KEPT + kept) * run.period + position,)
        distance = kept - (self.stand_in(maker) - run.begin) // run.period
        return (run.begin + (repeat + distance) * run.period + position,) if distance in (0, 1) else None


def likeness(pieces: Sequence[Piece], graph: Graph) -> tuple[int, ...]:
    """Return by piece, and for the loss at the end, the first piece that is identical but for its weights."""
    needs_grad = {value.name: value.requires_grad for value in graph.values}
    first: dict[Any, int] = {}
    alike = []
    for index, piece in enumerate(pieces):
        groups = tuple(graph.layers[position].group for position in range(piece.begin, piece.end))
        # The first takes the model's arguments, and the last returns its output.
        place = index == 0, index == len(pieces) - 1
        kind = groups, place, tuple(needs_grad[name] for name in piece.inputs)
        alike.append(first.setdefault(kind, index))
    return (*alike, len(pieces))


def fold(pieces: Sequence[Piece], alike: Sequence[int]) -> Folding:
    """Return the shortest chain that stands for ``pieces``; equal numbers of ``alike`` tell which are identical."""
    whole = tuple(pieces)
    run = longest_run(alike[: len(whole)])
    if run is None or not _is_regular(whole, run):
        return unfolded(whole)
    first, cut = run.begin + 2 * run.period, run.end - 2 * run.period
    renamed: dict[str, str] = {}
    for position in range(run.period):
        gone, stays = whole[cut - run.period + position], whole[run.begin + run.period + position]
        renamed.update(zip(gone.outputs, stays.outputs, strict=True))

    def joined(piece: Piece) -> Piece:
        return replace(
            piece,
            inputs=tuple(renamed.get(name, name) for name in piece.inputs),
            released=tuple(renamed.get(name, name) for name in piece.released),
        )

    return Folding(whole, (*whole[:first], *map(joined, whole[cut:])), run)


def unfolded(pieces: Sequence[Piece]) -> Folding:
    """Return the folding that folds nothing."""
    return Folding(tuple(pieces), tuple(pieces), None)


def longest_run(alike: Sequence[int]) -> Run | None:
    """Return the repetition whose folding drops the most, None if none drops any."""
    best: Run | None = None
    for period in range(1, len(alike) // (KEPT + 1) + 1):
        same = 0
        for index in range(period, len(alike) + 1):
            if index < len(alike) and alike[index] == alike[index - period]:
                same += 1
                continue
            repeats = same // period + 1
            run = Run(index - same - period, period, repeats)
            if repeats > KEPT and (best is None or run.dropped > best.dropped):
                best = run
            same = 0
    return best


def _is_regular(pieces: Sequence[Piece], run: Run) -> bool:
    """Return whether every repeat reads from itself, the one before it and before them all, always in the same way."""
    makers = {
        name: (index, position) for index, piece in enumerate(pieces) for position, name in enumerate(piece.outputs)
    }

    def described(index: int) -> Any:
        sources = []
        for name in pieces[index].inputs:
            maker, position = makers[name]
            is_inside = run.begin <= maker
            sources.append((index - maker, position) if is_inside else name)
        return sources, len(pieces[index].outputs)

    for index in range(run.begin + run.period, run.end):
        sources, _ = described(index)
        if any(isinstance(source, tuple) and source[0] >= 2 * run.period for source in sources):
            return False
        if index >= run.begin + 2 * run.period and described(index) != described(index - run.period):
            return False
    last = run.end - run.period
    late = {name for piece in pieces[run.end :] for name in piece.inputs}
    return all(not run.begin <= makers[name][0] < last for name in late)


def _one(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)
