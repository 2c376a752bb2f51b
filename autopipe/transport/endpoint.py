"""What the executor needs from a transport: one endpoint per rank."""

from typing import Protocol

import torch
from torch import Tensor


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


class TransportError(Exception):
    """A peer is gone or silent; the executor turns it into a `StepError` that names the action."""


class Endpoint(Protocol):
    """One rank's end of a transport.

    ``tag`` tells messages of one ordered pair of ranks apart; both sides must use each tag once at a time.
    """

    rank: int
    size: int
    device: torch.device
    shares_memory: bool

    def send(self, tensor: Tensor, *, peer: int, tag: int) -> Handle:
        """Start sending a contiguous tensor, which must not change before the wait."""

    def receive(self, buffer: Tensor, *, peer: int, tag: int) -> Handle:
        """Offer ``buffer`` (contiguous, of the sender's shape and dtype) for a tensor."""

    def send_note(self, note: bytes, *, peer: int, tag: int) -> Handle:
        """Start sending a few bytes beside the tensors."""

    def receive_note(self, *, peer: int, tag: int) -> bytes:
        """Return the bytes that ``peer`` sent under ``tag``."""

    def gather_notes(self, note: bytes) -> tuple[bytes, ...]:
        """Return every rank's note, by rank; all ranks call it."""

    def open_sum(self, numbers: int) -> Sum:
        """Begin a sum of float64 tensors of shape (numbers,) on the CPU, which all ranks finish later."""
