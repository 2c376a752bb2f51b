"""Ranks as processes of a torch.distributed group: gloo on CPUs, NCCL on GPUs."""

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from autopipe.transport.endpoint import Handle, TransportError


class DistributedEndpoint:
    """The end that one process holds of the pipeline group.

    Notes travel over a gloo group of their own, so that no accelerator waits for them. gloo tells messages
    apart by tag; other backends have no tags, so there every ordered pair of ranks in ``pairs`` has a
    communicator of its own, on which the order of sends equals the order of receives (which
    ``schedules.check`` proves before any process starts).

    Parameters
    ----------
    pairs : iterable of (int, int)
        The ordered pairs of ranks that exchange tensors; the same on every rank.
    """

    shares_memory = False

    def __init__(self, device: torch.device, pairs: Iterable[tuple[int, int]], *, timeout_s: float = 600.0) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device
        timeout = timedelta(seconds=timeout_s)
        backend = dist.get_backend()
        self._notes = dist.new_group(backend="gloo", timeout=timeout)
        self._groups: dict[tuple[int, int], dist.ProcessGroup | None] = {}
        self._tags = backend == "gloo"
        for pair in sorted(set(pairs)):
            self._groups[pair] = None if self._tags else dist.new_group(sorted(pair), timeout=timeout)

    def send(self, tensor: Tensor, *, peer: int, tag: int) -> Handle:
        """Start an isend."""
        group = self._groups[self.rank, peer]
        try:
            work = dist.isend(tensor, peer, group=group, tag=tag if self._tags else 0)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return _Work(work, tensor)

    def receive(self, buffer: Tensor, *, peer: int, tag: int) -> Handle:
        """Start an irecv."""
        group = self._groups[peer, self.rank]
        try:
            work = dist.irecv(buffer, peer, group=group, tag=tag if self._tags else 0)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return _Work(work, buffer)

    def send_note(self, note: bytes, *, peer: int, tag: int) -> Handle:
        """Start sending the length and the bytes."""
        length = torch.tensor([len(note)], dtype=torch.int64)
        content = torch.frombuffer(bytearray(note), dtype=torch.uint8)
        try:
            works = [
                _Work(dist.isend(part, peer, group=self._notes, tag=2 * tag + index), part)
                for index, part in enumerate((length, content))
            ]
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return _Works(works)

    def receive_note(self, *, peer: int, tag: int) -> bytes:
        """Return the bytes that ``peer`` sent."""
        length = torch.zeros(1, dtype=torch.int64)
        try:
            dist.recv(length, peer, group=self._notes, tag=2 * tag)
            content = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(content, peer, group=self._notes, tag=2 * tag + 1)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return content.numpy().tobytes()

    def gather_notes(self, note: bytes) -> tuple[bytes, ...]:
        """Return every rank's note: lengths first, then notes padded to the longest."""
        length = torch.tensor([len(note)])
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        try:
            dist.all_gather(lengths, length, group=self._notes)
            longest = max(int(value) for value in lengths)
            padded = torch.zeros(max(longest, 1), dtype=torch.uint8)
            padded[: len(note)] = torch.frombuffer(bytearray(note or b"\0"), dtype=torch.uint8)[: len(note)]
            parts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded, group=self._notes)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return tuple(part.numpy().tobytes()[: int(count)] for part, count in zip(parts, lengths, strict=True))

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over ranks (an all-reduce)."""
        total = tensor.clone()
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error
        return total

    def abort(self, reason: str) -> None:
        """Do nothing: a process cannot wake its peers out of a backend's wait."""


class _Work:
    def __init__(self, work: dist.Work | None, tensor: Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def wait(self) -> None:
        try:
            if self._work is not None:
                self._work.wait()
        except RuntimeError as error:
            raise TransportError(_first_line(error)) from error


class _Works:
    def __init__(self, works: list[_Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
