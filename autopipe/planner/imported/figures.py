"""Figures of a graph file are checked, so that a wrong one is named by its place."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from autopipe.errors import DocumentError, InputError
from autopipe.planner.dag import Floats

MOST_SECONDS = 1e9
MOST_BYTES = float(1 << 60)


def column(figures: Iterable[tuple[str, float]], most: float) -> Floats:
    """Return figures as an array, each checked with `figure`."""
    return np.array([figure(value, place, most) for place, value in figures], dtype=np.float64)


def figure(value: float, place: str, most: float) -> float:
    """Return ``value``.

    Raises
    ------
    DocumentError
        If it is negative, not a number, or above ``most``.
    """
    if not math.isfinite(value) or not 0 <= value <= most:
        raise DocumentError(f"{place} is {value!r}: times and sizes lie between 0 and {most:g}. Mend that figure.")
    return float(value)


def number(text: str, place: str) -> float:
    """Return the number that ``text`` writes.

    Raises
    ------
    DocumentError
        If it writes none.
    """
    try:
        return float(text)
    except ValueError:
        raise DocumentError(f"{place} is {text!r}, which is no number. Mend that figure.") from None


def distinct(names: Sequence[str], place: str) -> dict[str, int]:
    """Return the index of every name.

    Raises
    ------
    DocumentError
        If there is none, or one comes twice.
    """
    if not names:
        raise DocumentError(f"{place}: there is no node at all. Give at least one.")
    index: dict[str, int] = {}
    for position, name in enumerate(names):
        if name in index:
            raise DocumentError(f"{place}: the name {name!r} comes twice, the second time at {position}. Rename one.")
        index[name] = position
    return index


def device_count(asked: int | None, written: int | None, origin: str) -> int:
    """Return the number of devices that was asked for, or else the one that the file says.

    Raises
    ------
    DocumentError
        If the file says less than one.
    InputError
        If nothing says how many there are.
    """
    if asked is not None:
        return asked
    if written is None:
        raise InputError(f"{origin} does not say how many devices there are: add --gpus N.")
    if written < 1:
        raise DocumentError(f"{origin}: devices is {written}, and a plan needs at least one. Mend it, or add --gpus N.")
    return written
