"""Nanoseconds and bytes become the units that people read, here and nowhere else."""

from typing import NamedTuple

GIB = 1024**3
MIB = 1024**2
KIB = 1024
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


def format_bytes(size: int | None) -> str:
    """Return a size in bytes as text, for example ``1.50 GiB``; ``-`` where it was not measured."""
    if size is None:
        return "-"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"


def format_time(duration_ns: int | float | None) -> str:
    """Return a duration in nanoseconds as text, for example ``12.30 ms``; ``-`` where it was not measured."""
    if duration_ns is None:
        return "-"
    for unit, name in ((SECOND, "s"), (MILLISECOND, "ms"), (1000, "us")):
        if abs(duration_ns) >= unit:
            return f"{duration_ns / unit:.2f} {name}"
    return f"{round(duration_ns)} ns"


def format_share(share: float | None) -> str:
    """Return a share in [0, 1] as per cent, for example ``12.5 %``; ``-`` where it was not measured."""
    return "-" if share is None else f"{100 * share:.1f} %"


class Scale(NamedTuple):
    """One unit for a whole column of figures: its name and how many nanoseconds or bytes it holds."""

    unit: str
    size: int

    def format(self, value: int | float | None) -> str:
        """Return ``value`` in this unit with two decimals and no unit name; ``-`` where it was not measured."""
        return "-" if value is None else f"{value / self.size:.2f}"


def time_scale(largest_ns: int | float) -> Scale:
    """Return the unit in which a column of durations up to ``largest_ns`` is read best."""
    for scale in (Scale("s", SECOND), Scale("ms", MILLISECOND)):
        if abs(largest_ns) >= scale.size:
            return scale
    return Scale("us", 1000)


def byte_scale(largest_bytes: int) -> Scale:
    """Return the unit in which a column of sizes up to ``largest_bytes`` is read best."""
    for scale in (Scale("GiB", GIB), Scale("MiB", MIB)):
        if abs(largest_bytes) >= scale.size:
            return scale
    return Scale("KiB", KIB)
