"""A plan says what binds it, and why the others lost."""

from collections.abc import Sequence

from autopipe.documents.plan import Alternative
from autopipe.planner.bounds import frontier
from autopipe.planner.problem import without_limits
from autopipe.planner.score import Candidate
from autopipe.simulator.metrics import imbalance
from autopipe.units import format_bytes, format_share, format_time

LARGE_BUBBLE = 0.25


def binding_sentence(best: Candidate, fewer: Sequence[Alternative]) -> str:
    """Return what keeps the step from being shorter, in a few sentences.

    Parameters
    ----------
    fewer : sequence of Alternative
        The best plans on fewer devices.
    """
    sentences = []
    faster = [one for one in fewer if one.step_ns is not None and one.step_ns < best.step_ns]
    if faster:
        first = min(faster, key=lambda one: (one.step_ns or 0, one.pipeline_size))
        devices = "One device alone" if first.pipeline_size == 1 else f"A pipeline of {first.pipeline_size}"
        sentences.append(
            f"{devices} would be faster: {format_time(first.step_ns)} against {format_time(best.step_ns)}, so "
            f"{len(best.problem.grid.rows) * best.problem.grid.replicas} devices do not pay for this model and batch."
        )
    if best.problem.ranks == 1 and best.problem.grid.replicas > 1:
        sentences.append(
            f"A pipeline does not pay here: {best.problem.grid.replicas} replicas of the whole model are fastest."
        )
    sentences.append(_pace_sentence(best))
    memory = _memory_sentence(best)
    if memory:
        sentences.append(memory)
    waste = idle_sentence(best.run.busy_ns, best.step_ns)
    if waste:
        sentences.append(waste)
    ranks, count = best.problem.ranks, best.problem.micro_batches
    idle = (ranks - 1) / (count * best.kind.virtual + ranks - 1)
    if idle > LARGE_BUBBLE and not best.kind.splits:
        sentences.append(
            f"With {count} micro-batch{'es' if count > 1 else ''} on {ranks} ranks at least {format_share(idle)} of "
            f"the step idles; {2 * count + ranks - 1} micro-batches would halve that."
        )
    return " ".join(sentences)


def idle_sentence(busy_ns: Sequence[int], step_ns: int) -> str | None:
    """Return how much of all ranks' time idles, and which share of that is imbalance and which the bubble.

    Imbalance is what ranks have less to do than the busiest one; the bubble is what the busiest one itself idles, and
    all others with it: filling and draining the pipeline, and waiting for messages. None where nothing idles.
    """
    idle = len(busy_ns) * step_ns - sum(busy_ns)
    if len(busy_ns) < 2 or idle <= 0:
        return None
    imbalance = len(busy_ns) * max(busy_ns) - sum(busy_ns)
    share = format_share(idle / (len(busy_ns) * step_ns))
    return (
        f"{share} of all ranks' time idles: {format_share(imbalance / idle)} of "
        f"that is imbalance between ranks, {format_share(1 - imbalance / idle)} the bubble of filling, draining and "
        "waiting for messages."
    )


def lost_because(candidate: Candidate, best: Candidate) -> str:
    """Return why ``candidate`` is not the plan, in a few words."""
    if candidate.step_ns == best.step_ns:
        more = max(candidate.run.peak_bytes) - max(best.run.peak_bytes)
        return f"as fast, holds {format_bytes(more)} more" if more > 0 else "as fast, not preferred"
    words = []
    work = [
        sum(c.problem.micro_batches * c.problem.grid.replicas * (s.forward_ns + s.backward_ns) for s in c.stages)
        for c in (candidate, best)
    ]
    if work[0] > work[1]:
        words.append(f"{format_share(work[0] / work[1] - 1)} more computation")
    bubbles = [1 - sum(c.run.busy_ns) / (c.problem.ranks * c.step_ns) for c in (candidate, best)]
    if bubbles[0] > bubbles[1]:
        words.append(f"idles {format_share(bubbles[0])} of the step, not {format_share(bubbles[1])}")
    return ", ".join(words) or "slower"


def _pace_sentence(best: Candidate) -> str:
    """Say which stage is slowest, and whether it could be shorter."""
    work = [stage.forward_ns + stage.backward_ns for stage in best.stages]
    slowest = max(range(len(work)), key=work.__getitem__)
    layers = best.problem.intervals.sized.profile.layers[best.bounds[slowest] : best.bounds[slowest + 1]]
    names = layers[0].name if len(layers) == 1 else f"{layers[0].name} to {layers[-1].name}"
    sentence = f"Stage {slowest} ({names}) sets the pace: {format_time(work[slowest])} for a micro-batch"
    if len(work) == 1:
        return sentence + "."
    sentence += f", {format_share(imbalance(work) - 1)} above the mean."
    if len(layers) == 1:
        sentence += " It is a single layer, which no cut makes shorter."
    return sentence


def _memory_sentence(best: Candidate) -> str | None:
    """Say what memory costs, where the best split without limits is a better one."""
    problem = best.problem
    if problem.coupled or all(limit is None for limit in problem.limits):
        return None
    limited, free = frontier(problem), frontier(without_limits(problem))
    assert limited is not None
    assert free is not None
    least = [problem.weight * known.best.pace_ns + known.best.total_ns for known in (limited, free)]
    if least[1] >= least[0]:
        return None
    used = [(peak / limit, rank) for rank, peak in enumerate(best.run.peak_bytes) if (limit := problem.limits[rank])]
    share, rank = max(used)
    return (
        f"Memory binds: without limits the step could be about {format_share(1 - least[1] / least[0])} shorter; rank "
        f"{rank} uses {format_share(share)} of its {format_bytes(problem.limits[rank])}."
    )
