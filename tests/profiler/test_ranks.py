"""Ranks measure each its own device and the links between them, and all hold the same profile."""

import resource
from collections.abc import Sequence

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopipe
from autopipe.documents.files import decode, encode
from autopipe.documents.profile import Profile, ProfiledLink, ProfiledRank
from autopipe.errors import InputError, ProfileError
from autopipe.hardware.cluster import Link
from autopipe.hardware.profiled import measured_cluster
from autopipe.profiler import measure
from autopipe.profiler.ranks import _Note, described, measure_ranks
from autopipe.recorder import record
from tests.models import JOBS
from tests.processes import ProcessPool
from tests.profiles import chain_profile

SMALLER_BYTES = 3 << 40
TIMES = 1


class Slow(nn.Linear):
    """A layer that does its work several times over on a slow rank."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(TIMES):
            y = super().forward(x)
        return y


def build() -> nn.Module:
    return nn.Sequential(*(Slow(256, 256) for _ in range(4)))


def unequal_ranks(rank: int) -> bytes:
    global TIMES
    torch.manual_seed(0)
    if rank == 2:
        TIMES = 6
    if rank == 3:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (SMALLER_BYTES, hard))
    inputs = torch.randn(64, 256)
    model = build()
    recording = record(model, (inputs,), leaf=(Slow,))

    def own() -> Profile:
        return measure(model, (inputs,), micro_batches=(64,), budget_s=0.3, recording=recording)

    try:
        return encode(measure_ranks(own, torch.device("cpu")))
    finally:
        TIMES = 1
        if rank == 3:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def test_a_slow_rank_a_small_one_and_all_links_are_in_every_ranks_profile(processes: ProcessPool) -> None:
    found = processes.run(unequal_ranks, 4, timeout_s=100)
    assert len(set(found)) == 1
    profile = decode(found[0], Profile, origin="a rank")
    speeds = [rank.speed for rank in profile.ranks]
    assert min(speeds) == speeds[2]
    assert speeds[2] < 0.75 * min(speed for rank, speed in enumerate(speeds) if rank != 2)
    assert [rank.memory_bytes for rank in profile.ranks] == [None, None, None, SMALLER_BYTES]
    pairs = {(link.source, link.target) for link in profile.links}
    assert pairs == {(low, high) for high in range(4) for low in range(high)}
    assert all(link.bytes_per_s > 0 for link in profile.links)
    assert profile.conditions is not None
    assert profile.conditions.sending_ns(2**20) > 0
    assert profile.conditions.faults() == ()
    cluster = measured_cluster(profile)
    assert [device.speed for device in cluster.devices] == speeds
    assert cluster.link(0, 1).bytes_per_s == profile.link_bytes_per_s


def one_rank_fails(rank: int) -> str:
    def own() -> Profile:
        if rank == 1:
            raise ProfileError("memory ran out in layer 3")
        return chain_profile([10, 10])

    with pytest.raises(ProfileError) as caught:
        measure_ranks(own, torch.device("cpu"))
    return str(caught.value)


def test_what_one_rank_cannot_measure_is_raised_on_all(processes: ProcessPool) -> None:
    assert processes.run(one_rank_fails, 2) == ["on rank 1, memory ran out in layer 3"] * 2


def pipeline_without_a_plan(rank: int) -> tuple[int, bytes]:
    torch.manual_seed(0)
    job = JOBS["mlp"]
    inputs, target = job.draw(16)
    pipe = autopipe.pipeline(
        job.build(), example=(inputs,), target=target, loss_fn=job.loss, batch_size=16, budget_s=0.2
    )
    pipe.step(inputs, target=target)
    assert dist.get_rank() == rank
    return len(pipe.plan.ranks), encode(pipe.plan)


def test_a_pipeline_without_a_plan_is_planned_for_what_all_ranks_measured(processes: ProcessPool) -> None:
    (_, first), (_, second) = processes.run(pipeline_without_a_plan, 2)
    assert first == second


def notes(*times: int, devices: Sequence[str] = ()) -> list[_Note]:
    names = devices or ["gpu"] * len(times)
    return [_Note(device=name, node="one", step_ns=time) for name, time in zip(names, times, strict=True)]


def test_equal_devices_whose_times_differ_a_little_are_equally_fast() -> None:
    assert [rank.speed for rank in described(notes(100, 104, 97, 200))] == [1.0, 1.0, 1.0, 0.5]


def test_other_devices_keep_what_was_measured() -> None:
    assert [rank.speed for rank in described(notes(100, 104, devices=["a", "b"]))] == [1.0, 0.9615]


def test_links_inside_and_between_machines_are_told_apart() -> None:
    ranks = tuple(ProfiledRank(device="gpu", node=node) for node in (0, 0, 1))
    links = (
        ProfiledLink(source=0, target=1, latency_ns=5, bytes_per_s=10**11),
        ProfiledLink(source=0, target=2, latency_ns=50, bytes_per_s=10**10),
        ProfiledLink(source=1, target=2, latency_ns=70, bytes_per_s=10**10),
    )
    cluster = measured_cluster(msgspec.structs.replace(chain_profile([1, 1]), ranks=ranks, links=links))
    assert cluster.link(0, 1) == Link(latency_ns=5, bytes_per_s=10**11)
    assert cluster.link(1, 2) == Link(latency_ns=70, bytes_per_s=10**10)


def test_a_profile_of_one_device_holds_no_cluster() -> None:
    with pytest.raises(InputError, match="torchrun"):
        measured_cluster(chain_profile([1, 1]))


def test_a_plan_is_made_for_the_measured_ranks() -> None:
    ranks = (ProfiledRank(device="fast"), ProfiledRank(device="slow", speed=0.5))
    profile = msgspec.structs.replace(chain_profile([100] * 6), ranks=ranks)
    plan = autopipe.partition(profile, batch_size=8, replicas=1, virtual=1)
    assert [stage.end - stage.begin for stage in plan.stages] == [4, 2]
