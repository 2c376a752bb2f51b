"""A plan for another number of devices than there are is made anew, so that training goes on with those left."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from autopipe.documents.plan import Plan
from autopipe.errors import InputError
from autopipe.executor.launch import broadcast, local_devices


def running_ranks(plan: Plan, devices: Sequence[str | torch.device] | None, ranks: int | None) -> int:
    """Return how many processes, or devices of thread-ranks, there are for ``plan``: on the CPU as many as it needs."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    if devices is None and ranks is None and not torch.accelerator.is_available():
        return planned_ranks(plan)
    return len(local_devices(devices, ranks))


def planned_ranks(plan: Plan) -> int:
    """Return how many devices a plan is for, those of all its replicas."""
    return plan.pipeline_size * plan.data_parallel_size


def planned_again(make: Callable[[int], Plan], there: int) -> Plan:
    """Return the plan that ``make`` gives for ``there`` devices; under torchrun the first rank makes it for all."""
    return broadcast(make, Plan) if dist.is_available() and dist.is_initialized() else make(there)


def check_reaction(on_change: str | None) -> None:
    """Return if ``on_change`` is something that `autopipe.pipeline` can do.

    Raises
    ------
    InputError
        If not.
    """
    if on_change not in (None, "replan"):
        raise InputError(f'on_change={on_change!r} is not known: pass "replan", or leave it out.')
