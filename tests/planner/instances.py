"""Random planning problems, and oracles that try every split."""

from collections.abc import Iterator

from hypothesis import strategies as st

from autopipe.costs.size import at_size
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner import Request
from autopipe.planner import plan as make_plan
from autopipe.planner.kind import Kind
from autopipe.planner.levels import all_levels, fixed_level
from autopipe.planner.problem import Problem, make_problem, objective_ns
from autopipe.planner.solved import keeps
from autopipe.planner.wishes import Wishes
from tests.profiles import profiles

ONE_STAGE = (Kind(schedule="1f1b"), Kind(schedule="gpipe"), Kind(schedule="1f1b", depth=1))


def plan(found: Profile, cluster: Cluster, **asked: object) -> Plan:
    """One pipeline over all devices, one stage on each, as most tests mean it."""
    return make_plan(found, cluster, Request(**{"replicas": 1, "virtual": 1, **asked}))


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
        kind=draw(st.sampled_from(ONE_STAGE)),
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
    found: Profile,
    *,
    cluster: Cluster | None = None,
    stages: int,
    micro_batches: int,
    kind: Kind = ONE_STAGE[0],
    recompute: bool = False,
    replicas: int = 1,
    wishes: Wishes | None = None,
) -> Problem:
    """A problem on ``stages`` ranks at the smallest profiled size."""
    sized = at_size(found, found.micro_batches[0])
    return make_problem(
        all_levels(sized) if recompute else fixed_level(sized),
        DeviceGrid.of(cluster or Cluster.uniform(stages * replicas), stages, replicas),
        kind=kind,
        micro_batches=micro_batches,
        wishes=wishes,
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
    return min(
        (objective_ns(problem, bounds) for bounds in every_split(problem) if keeps(problem, bounds)), default=None
    )
