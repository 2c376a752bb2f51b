"""A pipeline chooses its plan where the user gave none, or one for another number of devices than there are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autopipe.api.documents import partition, profile
from autopipe.api.example import arguments
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.executor.launch import broadcast, local_devices
from autopipe.executor.microbatch import Inputs
from autopipe.executor.replan import planned_again, planned_ranks, running_ranks
from autopipe.executor.watchdog import Watchdog
from autopipe.executor.whereabouts import Doing
from autopipe.planner.refine import refined
from autopipe.profiler.ranks import follow, lead, measure_ranks, moved

Measure = Callable[[Sequence[str]], Profile]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a plan is chosen from: the model with an example, and the devices that there are.

    Attributes
    ----------
    batch_size : int or None
        The mini-batch, in samples, over all replicas; by default the example's.
    how : mapping
        What else `autopipe.profile` is given.
    wishes : mapping
        What the planner is to keep to, as `autopipe.partition` is given it.
    own : device or None
        This process's, where it is one of several ranks.
    watchdog : Watchdog or None
        That of the process, with ``own``.
    """

    model: nn.Module
    example: Any
    target: Any
    batch_size: int | None
    memory_bytes: int | None
    how: Mapping[str, Any]
    wishes: Mapping[str, Any]
    devices: Sequence[str | torch.device] | None
    ranks: int | None
    own: torch.device | None
    watchdog: Watchdog | None

    def profiled(self) -> Plan:
        """Return the plan for the devices of all ranks, each of which measures its own.

        Raises
        ------
        InputError
            If there is no example.
        """
        if self.example is None:
            raise InputError(
                "without plan= the model has to be recorded and profiled: pass example=, its arguments for one "
                "batch, or a plan from autopipe partition."
            )
        if self.own is None or self.watchdog is None:
            return self._planned(self._alone, len(local_devices(self.devices, self.ranks)))
        with self.watchdog.watching("profiling and planning", doing=Doing.BUSY):
            return self._measured_by_all(self.own)

    def kept_or_anew(self, plan: Plan, source: Profile | str | Path | None) -> Plan:
        """Return ``plan`` if it is for as many ranks as are running, else one of the same mini-batch.

        That is made from the profile ``source``, or from one of the example.

        Raises
        ------
        InputError
            If there is nothing to plan from.
        """
        there, needed = running_ranks(plan, self.devices, self.ranks), planned_ranks(plan)
        if there == needed:
            return plan
        batch = self.batch_size or plan.batch_size * plan.data_parallel_size
        if source is not None:
            return planned_again(
                lambda gpus: partition(source, gpus=gpus, batch_size=batch, memory_bytes=self.memory_bytes), there
            )
        if self.example is None:
            raise InputError(
                f"the plan is for {needed} ranks and {there} are running: to plan again, pass replan_profile=, the "
                "profile that it was made from, or example= to profile again."
            )
        return replace(self, batch_size=batch).profiled()

    def _alone(self, opened: Sequence[str]) -> Profile:
        return self._profile(opened, self.example, self.target)

    def _profile(self, opened: Sequence[str], example: Any, target: Any) -> Profile:
        return profile(self.model, example, target=target, opened=opened, **self.how)

    def _planned(self, measured: Measure, gpus: int) -> Plan:
        def planned(document: Profile) -> Plan:
            batch = self.batch_size
            if batch is None:
                assert document.graph is not None
                (batch,) = Inputs.of(document.graph).sizes(*arguments(self.example), 1)
            return partition(
                document, gpus=gpus, batch_size=batch, memory_bytes=self.memory_bytes, replicas=1, **self.wishes
            )

        return refined(measured, planned) if self.how["granularity"] is not None else planned(measured(()))

    def _measured_by_all(self, device: torch.device) -> Plan:
        """Return the plan that the first rank makes while every rank measures its own device."""

        def measured(opened: Sequence[str]) -> Profile:
            with moved(self.model, (self.example, self.target), device) as (example, target):
                return measure_ranks(lambda: self._profile(opened, example, target), device)

        if dist.get_rank() > 0:
            follow(measured)
        return broadcast(lambda gpus: lead(measured, lambda led: self._planned(led, gpus)), Plan)
