"""Random planning problems, and oracles that try every split."""

from collections.abc import Iterator

from hypothesis import strategies as st

from autopipe.costs.size import at_size
from autopipe.costs.stages import Intervals
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner.problem import Problem, make_problem, objective_ns
from tests.profiles import profiles


@st.composite
def problems(
    draw: st.DrawFn, *, chain: bool = False, tied: bool = True, plain: bool = False, max_layers: int = 7
) -> Problem:
    """A problem of up to 7 layers and 4 stages, with links, memory limits and unequal devices.

    ``plain``: neither optimizers nor tied parameters, for which the dynamic programme is exact.
    """
    found = draw(profiles(max_layers=max_layers, chain=chain, tied=tied and not plain, optimizer=not plain))
    stages = draw(st.integers(1, min(4, len(found.layers))))
    return problem_of(
        found,
        cluster=draw(clusters(stages)),
        stages=stages,
        micro_batches=draw(st.integers(1, 9)),
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
    )


@st.composite
def clusters(draw: st.DrawFn, devices: int) -> Cluster:
    """Devices of speeds 0.5 to 2, some with a memory limit, over slow or free links."""
    memory = draw(st.none() | st.integers(100, 900))
    speeds = draw(st.lists(st.sampled_from([1.0, 1.0, 0.5, 2.0]), min_size=devices, max_size=devices))
    link = draw(st.sampled_from([Link(), Link(latency_ns=7), Link(latency_ns=3, bytes_per_s=10**9)]))
    return Cluster(
        devices=tuple(Device(memory_bytes=memory, speed=speed, node=rank // 2) for rank, speed in enumerate(speeds)),
        intra_node=link,
        inter_node=draw(st.sampled_from([link, Link(latency_ns=11, bytes_per_s=10**9)])),
    )


def problem_of(
    found: Profile, *, cluster: Cluster | None = None, stages: int, micro_batches: int, schedule: str = "1f1b"
) -> Problem:
    return make_problem(
        Intervals.of(at_size(found, found.micro_batches[0])),
        cluster or Cluster.uniform(stages),
        schedule=schedule,
        stages=stages,
        micro_batches=micro_batches,
    )


def every_split(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield every allowed split."""

    def extend(bounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        stage = len(bounds) - 1
        if stage == problem.stages:
            yield bounds
            return
        for end in range(bounds[-1] + 1, problem.layers + 1):
            if problem.allowed[stage][bounds[-1], end]:
                yield from extend((*bounds, end))

    return extend((0,))


def least_objective(problem: Problem) -> int | None:
    return min((objective_ns(problem, bounds) for bounds in every_split(problem)), default=None)
