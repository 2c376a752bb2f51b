"""Sums over every interval of layers, made from a few rectangles and one pass over a table."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]


class Rectangles:
    """A table over pairs of positions, 0 to ``layers`` each, to which whole rectangles are added.

    Adding a rectangle takes constant time, whatever its size.
    """

    def __init__(self, layers: int) -> None:
        self._corners = np.zeros((layers + 2, layers + 2), dtype=np.int64)

    def add(self, rows: tuple[int, int], columns: tuple[int, int], amount: int) -> None:
        """Add ``amount`` to every pair whose row and column lie in these ranges, both sides included."""
        (top, bottom), (left, right) = rows, columns
        if top > bottom or left > right:
            return
        self._corners[top, left] += amount
        self._corners[top, right + 1] -= amount
        self._corners[bottom + 1, left] -= amount
        self._corners[bottom + 1, right + 1] += amount

    def table(self) -> Table:
        """Return the sums, shape (L + 1, L + 1)."""
        return self._corners.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]


def prefix(figures: Iterable[int]) -> Table:
    """Return the running sums of ``figures`` from 0, shape (L + 1,)."""
    return np.concatenate(([0], np.cumsum(np.fromiter(figures, dtype=np.int64))))


def between(sums: Table) -> Table:
    """Return the sum over every interval, shape (L + 1, L + 1), given `prefix` sums; meaningless for end < begin."""
    return sums[None, :] - sums[:, None]
