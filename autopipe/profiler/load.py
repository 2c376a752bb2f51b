"""Foreign load: how much of the machine's processors other processes took while something was measured."""

import os
import resource
from pathlib import Path

STAT = Path("/proc/stat")


class ForeignLoad:
    """Counts from its making on; `share` says what others took of all processors since then."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._start = _read(stat)

    def share(self) -> float | None:
        """Return the share in [0, 1] of processor time used by other processes, None where the system hides it."""
        end = _read(self._stat)
        if self._start is None or end is None:
            return None
        busy, total, own = (now - then for now, then in zip(end, self._start, strict=True))
        if total <= 0:
            return None
        return min(1.0, max(0.0, (busy - own) / total))


def _read(stat: Path) -> tuple[float, float, float] | None:
    """Return seconds of all processors (busy, total) and of this process, since some fixed moment."""
    try:
        fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal: guests are counted in user already
    idle = fields[3] + fields[4]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (sum(fields) - idle) / ticks, sum(fields) / ticks, usage.ru_utime + usage.ru_stime
