"""Every gap in a rank's timeline has a cause: what the rank waited for there."""

from collections.abc import Mapping

from autopipe.documents.timeline import Lane, RankTimeline, Span

CAUSES = ("none", "warm-up", "cool-down", "link", "sending", "waiting", "overhead", "tail")


def gap_causes(rank: RankTimeline, departed: Mapping[str, int], makespan_ns: int, step_ns: int) -> tuple[int, ...]:
    """Return, as indices into `CAUSES`, what lies before each action or optimizer span of ``rank``, and after the last.

    Parameters
    ----------
    departed : mapping of str to int
        When each message began to leave.
    makespan_ns, step_ns : int
        The end of the last action of all ranks, and of the step.

    Notes
    -----
    A gap of several causes has the one that takes most of it.
    """
    found, between = [], []
    end, computed = 0, False
    for span in rank.spans:
        if span.lane not in (Lane.COMPUTE, Lane.OPTIMIZER):
            between.append(span)
            continue
        if span.start_ns <= end:
            found.append("none")
        elif span.lane is Lane.OPTIMIZER:
            found.append(_after(end, span.start_ns, makespan_ns))
        elif not computed:
            found.append("warm-up")
        else:
            found.append(_between(between, end, span.start_ns, departed))
        computed = computed or span.lane is Lane.COMPUTE
        end = span.end_ns
        between = [one for one in between if one.end_ns > end]
    found.append(_after(end, step_ns, makespan_ns) if end < step_ns else "none")
    return tuple(map(CAUSES.index, found))


def _after(begin: int, end: int, makespan: int) -> str:
    """Return the cause of a gap behind a rank's last action."""
    return "cool-down" if min(end, makespan) - begin > end - max(begin, makespan) else "tail"


def _between(spans: list[Span], begin: int, end: int, departed: Mapping[str, int]) -> str:
    """Return the cause of a gap between two actions of a rank."""
    parts = dict.fromkeys(("link", "waiting", "sending"), 0)
    for span in spans:
        first, last = max(span.start_ns, begin), min(span.end_ns, end)
        if first >= last:
            continue
        if span.lane is Lane.WAIT:
            left = min(max(departed.get(span.label.partition(" ")[2], last), first), last)
            parts["link"] += last - left
            parts["waiting"] += left - first
        elif span.lane is Lane.SEND and span.label.startswith("send "):
            parts["sending"] += last - first
    parts["overhead"] = end - begin - sum(parts.values())
    return max(parts, key=lambda cause: parts[cause])
