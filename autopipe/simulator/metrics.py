"""One definition of every figure that speaks of a step as a whole."""

from collections.abc import Sequence

from autopipe.documents.timeline import Lane, RankTimeline, Timeline


def bubble_ratio(busy_ns: Sequence[int], step_ns: int) -> float:
    """Return the share of all ranks' time in the step in which they do not compute, in [0, 1].

    For equal stages without links or optimizer it is (p-1)/(m+p-1).

    Parameters
    ----------
    busy_ns : sequence of int
        By rank: time in actions and in the optimizer.
    step_ns : int
        Duration of the step, the optimizer included where ``busy_ns`` includes it.
    """
    return 1.0 - utilisation(busy_ns, step_ns)


def utilisation(busy_ns: Sequence[int], step_ns: int) -> float:
    """Return the share of all ranks' time in the step in which they compute, in [0, 1]; 0 for an empty step."""
    return sum(busy_ns) / (len(busy_ns) * step_ns) if step_ns else 0.0


def imbalance(stage_ns: Sequence[int]) -> float:
    """Return the slowest stage's time over the mean stage's, at least 1; 1 where no stage takes any."""
    return max(stage_ns) * len(stage_ns) / sum(stage_ns) if sum(stage_ns) else 1.0


def busy_ns(rank: RankTimeline) -> int:
    """Return the time that a rank spends in actions and in its optimizer."""
    return sum(span.end_ns - span.start_ns for span in rank.spans if span.lane in (Lane.COMPUTE, Lane.OPTIMIZER))


def makespan_ns(timeline: Timeline) -> int:
    """Return the time from the first action's start to the last one's end, the optimizer left out."""
    return max((span.end_ns for rank in timeline.ranks for span in rank.spans if span.lane is Lane.COMPUTE), default=0)
