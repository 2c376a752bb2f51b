"""The same rank of all replicas: processes that average gradients by a communication hook, or threads that do."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh

from autopipe.errors import InputError
from autopipe.transport.endpoint import GradientBucket, TransportError

if TYPE_CHECKING:
    from autopipe.transport.local import LocalEndpoint

Hook = Callable[[Any, Any], torch.futures.Future]


class DistributedReplicas:
    """Processes: one column of a mesh with the dimensions "pp" and "dp".

    Attributes
    ----------
    index, size : int
        This replica, and how many there are.
    group : ProcessGroup
        What averages gradients.
    """

    def __init__(self, mesh: DeviceMesh, device: torch.device, *, timeout: timedelta) -> None:
        self.group: Any = mesh.get_group("dp")
        self.index = mesh.get_local_rank("dp")
        self.size = self.group.size()
        self._numbers: Any = None
        for members in mesh.mesh.tolist():
            # Numbers have a group of their own: hooks call the other one whenever their answers come in.
            numbers = dist.new_group(members, backend="gloo", timeout=timeout)
            if dist.get_rank() in members:
                self._numbers = numbers
        self._hook: Hook = allreduce_hook
        self._state: Any = self.group
        self._is_ordered = dist.get_backend(self.group) != "gloo"

    def register(self, state: Any, hook: Hook) -> None:
        """Average gradients with a hook of `DistributedDataParallel`; a state without a group gets this one."""
        if hasattr(state, "process_group") and state.process_group is None:
            state.process_group = self.group
        self._state, self._hook = self.group if state is None else state, hook

    def close(self) -> None:
        """End the group of numbers and let go of the mesh's, which stay: the caller may have sharded over them."""
        end_group(self._numbers)
        self.group = self._numbers = self._state = None

    def mean(self, bucket: GradientBucket) -> "_Mean":
        """Call the hook."""
        try:
            mean = _Mean(self._hook(self._state, bucket))
            if self._hook is not allreduce_hook and not self._is_ordered:
                # A hook may send again when an answer comes, and gloo's threads answer in any order.
                mean.wait()
        except RuntimeError as error:
            raise TransportError(str(error)) from error
        return mean

    def open_sum(self, numbers: Tensor) -> "_Sum":
        """Start an all-reduce."""
        return _Sum(dist.all_reduce(numbers, group=self._numbers, async_op=True), numbers)

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast, all tensors of one dtype together."""
        source = dist.get_global_rank(self.group, 0)
        for same in _by_kind(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
            dist.broadcast(flat, source, group=self.group)
            for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.detach().copy_(part.view_as(tensor))


def end_group(group: Any) -> None:
    """End a process group, unless this process is no member or has ended it before."""
    if group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


class LocalReplicas:
    """Threads: the first replica adds up in the order of the replicas, and the others' parameters are its own."""

    def __init__(self, endpoint: "LocalEndpoint") -> None:
        self._endpoint = endpoint
        self.index, self.size = endpoint.replica, endpoint.replicas

    def register(self, state: Any, hook: Hook) -> None:
        """Refuse: hooks call process groups.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            "communication hooks need a process for each rank, and these ranks are threads, which share memory and "
            "send no gradients: start the script with torchrun, or leave the hook out."
        )

    def mean(self, bucket: GradientBucket) -> "_LocalMean":
        """Offer the tensor; the first replica adds up at its wait."""
        return _LocalMean(self._endpoint, bucket.buffer(), self._endpoint.next_call("mean"))

    def open_sum(self, numbers: Tensor) -> "_LocalSum":
        """Offer the numbers to every other replica."""
        return _LocalSum(self._endpoint, numbers, self._endpoint.next_call("sum"))

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Copy from the first replica's."""
        end = self._endpoint
        for tensor in tensors:
            call = end.next_call("copy")
            if self.index == 0:
                handles = [end.send_to_replica(tensor.detach(), replica=k, call=call) for k in range(1, self.size)]
                for handle in handles:
                    handle.wait()
            else:
                end.receive_from_replica(tensor.detach(), replica=0, call=call).wait()


class _Mean:
    def __init__(self, future: torch.futures.Future) -> None:
        self._future = future

    def wait(self) -> Tensor:
        try:
            value = self._future.wait()
        except RuntimeError as error:
            raise TransportError(str(error)) from error
        return value if isinstance(value, Tensor) else value[0]


class _Sum:
    def __init__(self, work: Any, numbers: Tensor) -> None:
        self._work, self._numbers = work, numbers

    def finish(self) -> Tensor:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise TransportError(str(error)) from error
        return self._numbers


class _LocalMean:
    def __init__(self, endpoint: "LocalEndpoint", part: Tensor, call: tuple[str, int]) -> None:
        self._endpoint, self._part, self._call = endpoint, part, call
        if endpoint.replica > 0:
            self._sent = endpoint.send_to_replica(part, replica=0, call=call)

    def wait(self) -> Tensor | None:
        end = self._endpoint
        if end.replica > 0:
            self._sent.wait()
            return None
        other = torch.empty_like(self._part)
        for replica in range(1, end.replicas):
            end.receive_from_replica(other, replica=replica, call=self._call).wait()
            self._part += other
        return self._part.div_(end.replicas)


class _LocalSum:
    def __init__(self, endpoint: "LocalEndpoint", part: Tensor, call: tuple[str, int]) -> None:
        self._endpoint, self._part, self._call = endpoint, part, call
        others = [replica for replica in range(endpoint.replicas) if replica != endpoint.replica]
        self._sent = {k: endpoint.send_to_replica(part, replica=k, call=call) for k in others}

    def finish(self) -> Tensor:
        parts = {self._endpoint.replica: self._part}
        for replica in self._sent:
            parts[replica] = torch.empty_like(self._part)
            self._endpoint.receive_from_replica(parts[replica], replica=replica, call=self._call).wait()
        for handle in self._sent.values():
            handle.wait()
        return torch.stack([parts[replica] for replica in sorted(parts)]).sum(0)


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())
