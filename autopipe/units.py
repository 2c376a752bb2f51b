"""Nanoseconds and bytes become the units that people read, here and nowhere else."""

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
