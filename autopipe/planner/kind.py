"""The kinds of schedule that the planner chooses among."""

from collections.abc import Iterator
from dataclasses import dataclass

from autopipe.schedules.named import FITTED, SPLIT, V_SHAPED, VIRTUAL

PREFERENCE = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "bfs", "gpipe", FITTED)
VIRTUAL_STAGES = (2, 3, 4, 6, 8)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A schedule by its name, the stages of each rank, and the extra forwards of its warm-up."""

    schedule: str
    virtual: int = 1
    depth: int = 0

    @property
    def splits(self) -> bool:
        """Whether the backward is split into two parts."""
        return self.schedule in SPLIT

    @property
    def preference(self) -> tuple[int, int, int]:
        """By what kinds of equal steps are told apart: the simpler and the more frugal one comes first."""
        return PREFERENCE.index(self.schedule), self.virtual, self.depth


def kinds(ranks: int, groups: int, *, schedule: str | None, virtual: int | None, can_split: bool) -> Iterator[Kind]:
    """Yield the kinds of schedule for ``ranks`` ranks and at most ``groups`` stages, the preferred ones first.

    Parameters
    ----------
    schedule, virtual : optional
        What the user fixes; ``fitted`` is searched on the stages of all others.
    can_split : bool
        Whether the two parts of the backward were measured.
    """
    asked = None if schedule == FITTED else schedule
    for name in PREFERENCE[:-1]:
        if name != (asked or name) or (name in SPLIT and not can_split) or (ranks == 1 and name not in (asked, "1f1b")):
            continue
        if name in VIRTUAL:
            counts: tuple[int, ...] = VIRTUAL_STAGES if virtual is None else (virtual,)
            counts = tuple(count for count in counts if count == 2 or (count > 2 and name not in V_SHAPED))
        else:
            counts = (1,) if virtual in (None, 1) else ()
        for count in counts:
            if ranks * count <= groups:
                yield Kind(schedule=name, virtual=count)
