"""Every schedule has a name, and is made from it."""

from autopipe.documents.arguments import typed
from autopipe.errors import InputError
from autopipe.schedules.action import Schedule
from autopipe.schedules.bfs import bfs
from autopipe.schedules.collector import collector_paused
from autopipe.schedules.dualpipe_v import dualpipe_v
from autopipe.schedules.forward_only import forward_only
from autopipe.schedules.gpipe import gpipe
from autopipe.schedules.interleaved import interleaved
from autopipe.schedules.one_f_one_b import one_f_one_b
from autopipe.schedules.zb_v import zb_v
from autopipe.schedules.zero_bubble import zb_h1, zb_h2

NAMES = ("gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "forward")
VIRTUAL = ("interleaved", "bfs", "zb-v", "dualpipe-v")
SPLIT = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")
V_SHAPED = ("zb-v", "dualpipe-v")
FITTED = "fitted"
MAXIMUM_ACTIONS = 8_000_000


def placement(name: str, *, ranks: int, virtual: int = 1) -> tuple[int, ...]:
    """Return the rank of each stage under the schedule ``name``: out and back in a V, else stage s on rank s mod p."""
    if name in V_SHAPED:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(stage % ranks for stage in range(ranks * virtual))


@typed
@collector_paused()
def make(name: str, *, stages: int, micro_batches: int, virtual: int | None = None, depth: int = 0) -> Schedule:
    """Return the schedule called ``name``.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    stages : int
        Ranks of the pipeline, p; with ``virtual`` stages on each.
    micro_batches : int
        Micro-batches of one step, m.
    virtual : int, optional
        Stages per rank, v: always 2 for those in a V, 1 (the default) or more for ``interleaved`` and ``bfs``, 1 for
        all others.
    depth : int
        Extra warm-up forwards of ``1f1b``.

    Raises
    ------
    InputError
        If the name is unknown, a size is below 1, an option does not belong to that schedule, or it would have more
        than 8 million actions.
    """
    if virtual is None:
        virtual = 2 if name in V_SHAPED else 1
    for what, size, least in (
        ("stages", stages, 1),
        ("micro-batches", micro_batches, 1),
        ("virtual stages", virtual, 1),
        ("depth", depth, 0),
    ):
        if size < least:
            raise InputError(f"a schedule with {size} {what} does not exist: give at least {least}.")
    actions = 3 * stages * virtual * micro_batches
    if actions > MAXIMUM_ACTIONS or depth > MAXIMUM_ACTIONS:
        raise InputError(
            f"a schedule of {stages} x {virtual} stages and {micro_batches} micro-batches has up to {actions} actions, "
            f"and at most {MAXIMUM_ACTIONS} are made: give smaller numbers."
        )
    if name not in NAMES:
        raise InputError(f"there is no schedule {name!r}: choose from {', '.join(NAMES)}.")
    if virtual != 1 and name not in VIRTUAL:
        raise InputError(
            f"schedule {name!r} has one stage per rank, not {virtual}: leave virtual stages at 1, or choose "
            f"{', '.join(VIRTUAL[:-1])} or {VIRTUAL[-1]}."
        )
    if name in V_SHAPED and virtual != 2:
        raise InputError(f"schedule {name!r} has two stages per rank, not {virtual}: give --virtual 2.")
    if depth and name != "1f1b":
        raise InputError(f"schedule {name!r} has no depth: leave it at 0, or choose 1f1b.")
    match name:
        case "1f1b":
            return one_f_one_b(stages, micro_batches, depth=depth)
        case "interleaved":
            return interleaved(stages, micro_batches, virtual=virtual)
        case "bfs":
            return bfs(stages, micro_batches, virtual=virtual)
        case "zb-h1":
            return zb_h1(stages, micro_batches)
        case "zb-h2":
            return zb_h2(stages, micro_batches)
        case "zb-v":
            return zb_v(stages, micro_batches)
        case "dualpipe-v":
            return dualpipe_v(stages, micro_batches)
        case "forward":
            return forward_only(range(stages), micro_batches)
    return gpipe(stages, micro_batches)
