"""What the executor needs from a transport: one endpoint per rank."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


class Handle(Protocol):
    """A send or receive under way."""

    def wait(self) -> None:
        """Return when the tensor has left or arrived.

        Raises
        ------
        TransportError
            If it cannot any more.
        """


class Sum(Protocol):
    """A sum over all ranks under way."""

    def finish(self, tensor: Tensor) -> Tensor:
        """Return the sum of every rank's tensor.

        Raises
        ------
        TransportError
            If a rank is gone.
        """


class ReplicaSum(Protocol):
    """A sum over replicas under way."""

    def finish(self) -> Tensor:
        """Return the sum of every replica's numbers."""


class GradientBucket(Protocol):
    """Gradients in one flat tensor, with the methods of `torch.distributed.GradBucket`."""

    def buffer(self) -> Tensor:
        """Return the tensor."""


class Mean(Protocol):
    """A mean over replicas under way."""

    def wait(self) -> Tensor | None:
        """Return the mean; None on a replica that shares its parameters with the first, which has it."""


class ReplicaGroup(Protocol):
    """The same rank of all replicas: they hold the same stages. All of them make each call, in the same order."""

    index: int
    size: int

    def mean(self, bucket: GradientBucket) -> Mean:
        """Begin to average the bucket's tensor, which must not be used any more."""

    def register(self, state: Any, hook: Callable[[Any, Any], torch.futures.Future]) -> None:
        """Take means with a communication hook of `DistributedDataParallel` from here on.

        Raises
        ------
        InputError
            If replicas are threads.
        """

    def open_sum(self, numbers: Tensor) -> ReplicaSum:
        """Begin to sum a float64 tensor on the CPU."""

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Make ``tensors`` equal to those of the first replica."""


class TransportError(Exception):
    """A peer is gone or silent; the executor turns it into a `StepError` that names the action."""


class Endpoint(Protocol):
    """One rank's end of a transport.

    ``rank`` of ``size`` counts within one pipeline, ``replica`` of ``replicas`` the pipelines; messages stay within a
    replica, and what all ranks call is called by those of all replicas. ``tag`` tells messages of one ordered pair of
    ranks apart; both sides must use each tag once at a time. ``replica_group`` holds the same rank of all replicas,
    if there is more than one.
    """

    rank: int
    size: int
    replica: int
    replicas: int
    device: torch.device
    shares_memory: bool
    mesh: DeviceMesh | None

    @property
    def replica_group(self) -> ReplicaGroup | None:
        """The same rank of all replicas."""

    def close(self) -> None:
        """Let go of what was made for this end; nothing is sent over it any more."""

    def send(self, tensor: Tensor, *, peer: int, tag: int) -> Handle:
        """Start sending a contiguous tensor, which must not change before the wait."""

    def receive(self, buffer: Tensor, *, peer: int, tag: int) -> Handle:
        """Offer ``buffer`` (contiguous, of the sender's shape and dtype) for a tensor."""

    def send_note(self, note: bytes, *, peer: int, tag: int) -> Handle:
        """Start sending a few bytes beside the tensors."""

    def receive_note(self, *, peer: int, tag: int) -> bytes:
        """Return the bytes that ``peer`` sent under ``tag``."""

    def gather_notes(self, note: bytes) -> tuple[bytes, ...]:
        """Return every rank's note, by rank and then by replica; all ranks call it."""

    def open_sum(self, numbers: int) -> Sum:
        """Begin a sum of float64 tensors of shape (numbers,) on the CPU, which all ranks finish later."""
