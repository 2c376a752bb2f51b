"""Ranks as processes of a torch.distributed group: gloo on CPUs, NCCL on GPUs."""

import atexit
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from autopipe.transport.endpoint import Handle, TransportError
from autopipe.transport.replicas import DistributedReplicas, end_group

_UP, _DOWN, _FAN = (1 << 30) + 1, (1 << 30) + 2, 8


@dataclass(frozen=True, kw_only=True)
class _Channel:
    """Where the tensors of one ordered pair of ranks travel: a group, and the two ranks within it."""

    group: Any
    source: int
    target: int


class DistributedEndpoint:
    """The end that one process holds of the pipeline group.

    Notes travel over a gloo group of their own, so that no accelerator waits for them. gloo tells messages
    apart by tag; other backends have no tags, so there every ordered pair of ranks in ``pairs`` has a
    communicator of its own, on which the order of sends equals the order of receives (which
    ``schedules.check`` proves before any process starts).

    Parameters
    ----------
    pairs : iterable of (int, int)
        The ordered pairs of pipeline ranks that exchange tensors; the same on every rank.
    replicas : int
        How many pipelines share the processes.
    order : sequence of int, optional
        Entry r * replicas + k is the process of pipeline rank r of replica k; by default they are in turn.
    """

    shares_memory = False

    def __init__(
        self,
        device: torch.device,
        pairs: Iterable[tuple[int, int]],
        *,
        replicas: int = 1,
        order: Sequence[int] = (),
        timeout_s: float = 600.0,
    ) -> None:
        self._order = tuple(order) or tuple(range(dist.get_world_size()))
        self._position = self._order.index(dist.get_rank())
        self.rank, self.replica = divmod(self._position, replicas)
        self.size, self.replicas = len(self._order) // replicas, replicas
        self.device = device
        self._under_way: Any = None
        timeout = timedelta(seconds=timeout_s)
        backend = dist.get_backend()
        self._notes: Any = dist.new_group(backend="gloo", timeout=timeout)
        self._tags = backend == "gloo"
        self._channels: dict[tuple[int, int], _Channel] = {}
        for source, target in sorted(set(pairs)):
            for replica in range(replicas):
                channel = self._open(self._process(source, replica), self._process(target, replica), timeout)
                if replica == self.replica:
                    self._channels[source, target] = channel
        self.mesh: DeviceMesh | None = None
        self.replica_group: DistributedReplicas | None = None
        if replicas > 1:
            rows = torch.tensor(self._order).view(self.size, replicas)
            self.mesh = DeviceMesh(device.type, rows, mesh_dim_names=("pp", "dp"))
            self.replica_group = DistributedReplicas(self.mesh, device, timeout=timeout)
        atexit.register(self.close)

    def close(self) -> None:
        """End the groups that this end has made, and let go of the caller's; also done when the process ends.

        A thread of a group that still holds a finished work needs the interpreter to free its tensors, and aborts a
        process whose interpreter has ended (torch 2.13; pytorch/pytorch pull request 179291). The end of a group waits
        for its threads, if nobody holds the group.
        """
        atexit.unregister(self.close)
        made = {id(group): group for group in (self._notes, *(channel.group for channel in self._channels.values()))}
        self._channels, self._notes, self._under_way = {}, None, None
        for group in made.values():
            if group is not dist.group.WORLD:
                end_group(group)
        if self.replica_group is not None:
            self.replica_group.close()
        self.mesh = None

    def process_of(self, rank: int) -> int:
        """Return the process that is ``rank`` of this replica."""
        return self._process(rank, self.replica)

    def _process(self, rank: int, replica: int) -> int:
        return self._order[rank * self.replicas + replica]

    def _open(self, source: int, target: int, timeout: timedelta) -> _Channel:
        """Return the channel between two processes; all processes call it."""
        if self._tags:
            return _Channel(group=dist.group.WORLD, source=source, target=target)
        members = sorted((source, target))
        group = dist.new_group(members, timeout=timeout)
        return _Channel(group=group, source=members.index(source), target=members.index(target))

    def cut(self) -> None:
        """End the wait that another thread is in, if it is in one: it raises TransportError.

        Nothing can be sent or received any more. On gloo the connection is closed by a second wait for the same
        work that ends at once; other backends have an abort.
        """
        for group in {id(channel.group): channel.group for channel in self._channels.values()}.values():
            if not self._tags:
                group.abort()
        work = self._under_way
        if work is not None:
            # What this thread meets is what it wants to bring about in the other one.
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(milliseconds=1))

    def wait(self, work: Any) -> None:
        """Return when ``work`` is done; the one place where this process waits for others.

        Raises
        ------
        TransportError
            If it cannot be done any more.
        """
        self._under_way = work
        try:
            if not work.wait():
                raise TransportError("the wait was ended")
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        finally:
            self._under_way = None

    def send(self, tensor: Tensor, *, peer: int, tag: int) -> Handle:
        """Start sending."""
        channel = self._channels[self.rank, peer]
        try:
            # The group's own method: dist.isend spends more time on its checks than on a small message.
            work = channel.group.send([tensor], channel.target, tag if self._tags else 0)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return _Work(self, work, tensor)

    def receive(self, buffer: Tensor, *, peer: int, tag: int) -> Handle:
        """Start receiving."""
        channel = self._channels[peer, self.rank]
        try:
            work = channel.group.recv([buffer], channel.source, tag if self._tags else 0)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return _Work(self, work, buffer)

    def send_note(self, note: bytes, *, peer: int, tag: int) -> Handle:
        """Start sending the length and the bytes."""
        process = self._process(peer, self.replica)
        length = torch.tensor([len(note)], dtype=torch.int64)
        content = torch.frombuffer(bytearray(note), dtype=torch.uint8)
        try:
            works = [
                _Work(self, self._notes.send([part], process, 2 * tag + index), part)
                for index, part in enumerate((length, content))
            ]
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return _Works(works)

    def receive_note(self, *, peer: int, tag: int) -> bytes:
        """Return the bytes that ``peer`` sent."""
        process = self._process(peer, self.replica)
        length = torch.zeros(1, dtype=torch.int64)
        try:
            self.wait(self._notes.recv([length], process, 2 * tag))
            content = torch.empty(int(length), dtype=torch.uint8)
            self.wait(self._notes.recv([content], process, 2 * tag + 1))
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return content.numpy().tobytes()

    def gather_notes(self, note: bytes) -> tuple[bytes, ...]:
        """Return every rank's note: lengths first, then notes padded to the longest."""
        length = torch.tensor([len(note)])
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in self._order]
        try:
            self.wait(dist.all_gather(lengths, length, group=self._notes, async_op=True))
            longest = max(int(value) for value in lengths)
            padded = torch.zeros(max(longest, 1), dtype=torch.uint8)
            padded[: len(note)] = torch.frombuffer(bytearray(note or b"\0"), dtype=torch.uint8)[: len(note)]
            parts = [torch.empty_like(padded) for _ in self._order]
            self.wait(dist.all_gather(parts, padded, group=self._notes, async_op=True))
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        notes = [part.numpy().tobytes()[: int(count)] for part, count in zip(parts, lengths, strict=True)]
        return tuple(notes[process] for process in self._order)

    def open_sum(self, numbers: int) -> "_Sum":
        """Post the receives of a sum to come."""
        return _Sum(self, self._order, self._position, numbers)


class _Sum:
    """A sum over ranks, added up from the last rank to the first and sent back down a tree.

    Ranks end a step in that order, so little is left to do when the first one ends. An all-reduce of gloo,
    begun when all have ended, takes three times as long.
    """

    def __init__(self, end: DistributedEndpoint, order: Sequence[int], place: int, numbers: int) -> None:
        self._end, self._order, self._place = end, order, place
        group = end._notes
        self._part, self._total = torch.zeros(2, numbers, dtype=torch.float64)
        self._children = order[_FAN * place + 1 : _FAN * (place + 1) + 1]
        self._from_next = group.recv([self._part], order[place + 1], _UP) if place + 1 < len(order) else None
        self._from_parent = group.recv([self._total], order[(place - 1) // _FAN], _DOWN) if place > 0 else None

    def finish(self, tensor: Tensor) -> Tensor:
        total, group = tensor.clone(), self._end._notes
        try:
            if self._from_next is not None:
                self._end.wait(self._from_next)
                total += self._part
            if self._from_parent is not None:
                self._end.wait(group.send([total], self._order[self._place - 1], _UP))
                self._end.wait(self._from_parent)
                total = self._total
            for work in [group.send([total], child, _DOWN) for child in self._children]:
                self._end.wait(work)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return total


class _Work:
    def __init__(self, end: DistributedEndpoint, work: dist.Work | None, tensor: Tensor) -> None:
        self._end, self._work, self._tensor = end, work, tensor

    def wait(self) -> None:
        if self._work is not None:
            self._end.wait(self._work)


class _Works:
    def __init__(self, works: list[_Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
