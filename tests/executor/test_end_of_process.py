"""Once a pipeline has ended, no thread of its groups is left that could meet the interpreter's end."""

import os
import sys
import time

import pytest
import torch.distributed as dist

from tests.executor.test_data_parallel import build, part
from tests.models import JOBS
from tests.processes import ProcessPool


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def threads_left(rank: int, replicas: int) -> tuple[int, int, int]:
    """Return how many threads there are in a group, with a pipeline, and when that and all groups have ended."""
    before = threads()
    pipe, _ = build("gpt", replicas=replicas)
    x, y = JOBS["gpt"].draw(8)
    pipe.step(part(pipe, x), target=part(pipe, y))
    pipe.full_state_dict()
    during = threads()
    pipe.close()
    dist.destroy_process_group()
    end = time.monotonic() + 5.0  # the system takes a moment to forget a thread that has been joined
    while (left := threads()) > before and time.monotonic() < end:
        time.sleep(0.01)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # for the pool to end
    assert pipe.steps == 1  # it is still held
    return before, during, left


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("replicas", [1, 2])
def test_no_thread_of_a_group_is_left(processes: ProcessPool, replicas: int) -> None:
    for before, during, left in processes.run(threads_left, 2 * replicas, replicas):
        assert left <= before < during
