"""Every schedule has a name, and is made from it."""

from autopipe.errors import InputError
from autopipe.schedules.action import Schedule
from autopipe.schedules.forward_only import forward_only
from autopipe.schedules.gpipe import gpipe
from autopipe.schedules.one_f_one_b import one_f_one_b

NAMES = ("gpipe", "1f1b", "forward")


def make(name: str, *, stages: int, micro_batches: int, virtual: int = 1, depth: int = 0) -> Schedule:
    """Return the schedule called ``name``.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    stages : int
        Ranks of the pipeline, p; with ``virtual`` stages on each.
    micro_batches : int
        Micro-batches of one step, m.
    virtual : int
        Stages per rank, v; 1 for every schedule of today.
    depth : int
        Extra warm-up forwards of ``1f1b``.

    Raises
    ------
    InputError
        If the name is unknown, a size is below 1, or an option does not belong to that schedule.
    """
    for what, size, least in (
        ("stages", stages, 1),
        ("micro-batches", micro_batches, 1),
        ("virtual stages", virtual, 1),
        ("depth", depth, 0),
    ):
        if size < least:
            raise InputError(f"a schedule with {size} {what} does not exist: give at least {least}.")
    if name not in NAMES:
        raise InputError(f"there is no schedule {name!r}: choose from {', '.join(NAMES)}.")
    if virtual != 1:
        raise InputError(f"schedule {name!r} has one stage per rank, not {virtual}: leave virtual stages at 1.")
    if depth and name != "1f1b":
        raise InputError(f"schedule {name!r} has no depth: leave it at 0, or choose 1f1b.")
    if name == "1f1b":
        return one_f_one_b(stages, micro_batches, depth=depth)
    return (gpipe if name == "gpipe" else forward_only)(stages, micro_batches)
