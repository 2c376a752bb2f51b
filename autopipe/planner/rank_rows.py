"""The memory rows of a rank that holds several stages: what they need together at each of its largest moments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopipe.costs.memory import IntervalMemory, far_counts
from autopipe.costs.tables import Table
from autopipe.planner.problem import Problem
from autopipe.schedules.moments import Moment


@dataclass(frozen=True, order=True)
class Arc:
    """Layers ``begin`` to ``end - 1`` as ``stage``, at a level of recompute."""

    stage: int
    begin: int
    end: int
    level: int


def arcs_of(problem: Problem, intervals: Sequence[tuple[int, int, int]]) -> tuple[Arc, ...]:
    """Return the choices that each interval (stage, begin, end) leaves.

    Where a rank has one stage, that is the fastest level that fits. Where several share its memory, it is every
    level that no other one beats in time, in what each micro-batch holds and in the peak of the one in hand, and
    that is no faster than those that fit when the stage is alone.
    """
    if not problem.coupled or len(problem.levels.intervals) == 1:
        return tuple(Arc(s, i, j, int(problem.level[s][i, j])) for s, i, j in intervals)
    fronts: dict[tuple[int, int], list[int]] = {}
    for _, begin, end in intervals:
        if (begin, end) not in fronts:
            fronts[begin, end] = _front(problem, begin, end)
    every = (Arc(s, i, j, level) for s, i, j in intervals for level in fronts[i, j])
    return tuple(arc for arc in every if extra_ns(problem, arc) >= 0)


def _front(problem: Problem, begin: int, end: int) -> list[int]:
    points = [
        tuple(int(table[begin, end]) for table in (one.times.backward_ns, one.memory.saved, *_peaks(one.memory)))
        for one in problem.levels.intervals
    ]
    kept: list[int] = []
    for level in sorted(range(len(points)), key=points.__getitem__):
        if not any(all(map(int.__le__, points[other], points[level])) for other in kept):
            kept.append(level)
    return sorted(kept)


def _peaks(memory: IntervalMemory) -> tuple[Table, Table]:
    return memory.peak, memory.forward_peak


def extra_ns(problem: Problem, arc: Arc) -> int:
    """Return how much longer an arc computes than the problem's tables say of its interval."""
    chosen = int(problem.level[arc.stage][arc.begin, arc.end])
    if arc.level == chosen:
        return 0
    speed = problem.grid.devices[problem.stage_ranks[arc.stage]].speed
    at = arc.begin, arc.end
    own, table = (problem.levels.intervals[level].times.backward_ns[at] for level in (arc.level, chosen))
    return int(np.ceil(own / speed)) - int(np.ceil(table / speed))


def rank_rows(problem: Problem, arcs: Sequence[Arc]) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
    """Yield rank, number of the moment and the bytes of every arc, for each row that could go over the limit."""
    features = np.array([_features(problem, arc) for arc in arcs], dtype=np.int64)
    stages = np.array([arc.stage for arc in arcs])
    for rank, limit in enumerate(problem.limits):
        if limit is None:
            continue
        for number, moment in enumerate(problem.moments[rank]):
            needed = np.zeros(len(arcs), dtype=np.int64)
            most = 0
            for stage in moment.stages:
                own = stages == stage
                needed[own] = features[own] @ _coefficients(problem, moment, stage)
                most += int(needed[own].max(initial=0))
            if most > limit:
                yield rank, number, needed


def overflow_bytes(problem: Problem, chosen: Sequence[Arc]) -> int:
    """Return by how much the fullest rank of a split goes over its limit, 0 if it fits."""
    over = [int(needed.sum()) - (problem.limits[rank] or 0) for rank, _, needed in rank_rows(problem, chosen)]
    return max(0, *over, 0)


def _features(problem: Problem, arc: Arc) -> tuple[int, ...]:
    one, at = problem.levels.intervals[arc.level], (arc.begin, arc.end)
    tables: tuple[Table, ...] = (
        one.memory.state,
        *_peaks(one.memory),
        one.memory.saved,
        one.times.input_bytes,
        one.memory.output_gradients,
        one.memory.near_outputs,
        one.memory.far_outputs,
        one.memory.near_input_gradients,
        one.memory.far_input_gradients,
    )
    return tuple(int(table[at]) for table in tables)


def _coefficients(problem: Problem, moment: Moment, stage: int) -> npt.NDArray[np.int64]:
    """Return how often each feature counts, as `costs.memory.holding_bytes` has it."""
    held = moment.held[moment.stages.index(stage)]
    far, far_gradients = far_counts(held, stage=stage, stages=problem.stages, micro_batches=problem.micro_batches)
    return np.array(
        (
            1,
            int(moment.in_hand == stage and not moment.forward),
            int(moment.in_hand == stage and moment.forward),
            held.in_flight,
            held.inputs,
            held.gradients,
            held.outputs,
            far,
            held.input_gradients,
            far_gradients,
        ),
        dtype=np.int64,
    )
