"""Ranks as threads of one process: a message is copied when both sides have met."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from autopipe.transport.endpoint import Handle, Sum, TransportError
from autopipe.transport.replicas import LocalReplicas

Result = TypeVar("Result")
Key = tuple[int, int, str, int]


class Hub:
    """What the endpoints of one process share: who offers, who sends, and whether all is well."""

    def __init__(self, devices: tuple[torch.device, ...], *, timeout_s: float = 600.0) -> None:
        self.devices = devices
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._sent: dict[Key, Any] = {}
        self._taken: set[Key] = set()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._done: dict[int, int] = {}
        self._calls = [0] * len(devices)
        self._replica_calls: Counter[tuple[int, str]] = Counter()
        self._reason: str | None = None

    def endpoints(self, replicas: int = 1) -> "tuple[LocalEndpoint, ...]":
        """Return one endpoint per device, by rank and then by replica."""
        return tuple(LocalEndpoint(self, place, replicas) for place in range(len(self.devices)))

    def put(self, key: Key, item: Any) -> None:
        """Offer ``item`` under ``key``."""
        with self._changed:
            self._sent[key] = item
            self._changed.notify_all()

    def take(self, key: Key, use: Callable[[Any], Result]) -> Result:
        """Wait for the item under ``key``, use it, and tell its sender that it is free."""
        self._wait(lambda: key in self._sent, f"message {key[3]} of rank {key[0]}")
        with self._changed:
            item = self._sent.pop(key)
        result = use(item)
        with self._changed:
            self._taken.add(key)
            self._changed.notify_all()
        return result

    def wait_taken(self, key: Key) -> None:
        """Wait until the item under ``key`` has been used."""
        self._wait(lambda: key in self._taken, f"rank {key[1]} to take message {key[3]}")
        with self._changed:
            self._taken.discard(key)

    def exchange(self, rank: int, item: Any) -> tuple[Any, ...]:
        """Return every rank's item of the same collective call, by rank."""
        size = len(self.devices)
        with self._changed:
            number = self._calls[rank]
            self._calls[rank] += 1
            self._rounds.setdefault(number, {})[rank] = item
            self._changed.notify_all()
        self._wait(lambda: len(self._rounds[number]) == size, "the other ranks")
        with self._changed:
            items = self._rounds[number]
            self._done[number] = self._done.get(number, 0) + 1
            if self._done[number] == size:
                del self._rounds[number], self._done[number]
        return tuple(items[other] for other in range(size))

    def next_call(self, place: int, kind: str) -> int:
        """Return the number of a rank's next call of some kind with its replicas, the same for all of them."""
        self._replica_calls[place, kind] += 1
        return self._replica_calls[place, kind]

    def abort(self, reason: str) -> None:
        """Wake all who wait, with ``reason``; the first reason stays."""
        with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()

    def reset(self) -> None:
        """Forget every message and the reason of an abort; no rank may be in a call."""
        with self._changed:
            for store in (self._sent, self._taken, self._rounds, self._done):
                store.clear()
            self._calls = [0] * len(self.devices)
            self._replica_calls.clear()
            self._reason = None

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.timeout_s
        with self._changed:
            while not ready():
                if self._reason is not None:
                    raise TransportError(self._reason)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TransportError(f"waited {self.timeout_s:g} s for {what}")
                self._changed.wait(min(left, 5.0))


class LocalEndpoint:
    """One thread-rank's end of a `Hub`."""

    shares_memory = True

    def __init__(self, hub: Hub, place: int, replicas: int = 1) -> None:
        self.rank, self.replica = divmod(place, replicas)
        self.size, self.replicas = len(hub.devices) // replicas, replicas
        self.device = hub.devices[place]
        self.mesh: DeviceMesh | None = None
        self._hub = hub
        self._place = place
        self.replica_group = LocalReplicas(self) if replicas > 1 else None

    def close(self) -> None:
        """Do nothing: the hub goes with its endpoints."""

    def _peer(self, rank: int) -> int:
        return rank * self.replicas + self.replica

    def send(self, tensor: Tensor, *, peer: int, tag: int) -> Handle:
        """Offer ``tensor``; its wait ends when the peer has copied it."""
        return self._offer(tensor, (self._place, self._peer(peer), "tensor", tag))

    def receive(self, buffer: Tensor, *, peer: int, tag: int) -> Handle:
        """Name a buffer; its wait copies the peer's tensor into it."""
        return _Received(self._hub, (self._peer(peer), self._place, "tensor", tag), buffer)

    def send_note(self, note: bytes, *, peer: int, tag: int) -> Handle:
        """Offer a note, which is copied at once."""
        key = (self._place, self._peer(peer), "note", tag)
        self._hub.put(key, note)
        return _Sent(self._hub, key)

    def receive_note(self, *, peer: int, tag: int) -> bytes:
        """Return the peer's note."""
        return self._hub.take((self._peer(peer), self._place, "note", tag), bytes)

    def next_call(self, kind: str) -> tuple[str, int]:
        """Return what tells the next call of this kind, which all replicas of this rank make, from all others."""
        return kind, self._hub.next_call(self._place, kind)

    def send_to_replica(self, tensor: Tensor, *, replica: int, call: tuple[str, int]) -> Handle:
        """Offer ``tensor`` to the same rank of another replica."""
        return self._offer(tensor, (self._place, self.rank * self.replicas + replica, *call))

    def receive_from_replica(self, buffer: Tensor, *, replica: int, call: tuple[str, int]) -> Handle:
        """Name a buffer for what the same rank of another replica sends."""
        return _Received(self._hub, (self.rank * self.replicas + replica, self._place, *call), buffer)

    def _offer(self, tensor: Tensor, key: Key) -> Handle:
        self._hub.put(key, (tensor, _mark(tensor.device)))
        return _Sent(self._hub, key)

    def gather_notes(self, note: bytes) -> tuple[bytes, ...]:
        """Return every rank's note, by rank."""
        return self._hub.exchange(self._place, note)

    def open_sum(self, numbers: int) -> Sum:
        """Return a sum that adds in the order of the ranks."""
        return _Sum(self._hub, self._place)


class _Sum:
    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub, self._rank = hub, rank

    def finish(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._hub.exchange(self._rank, tensor.clone())).sum(0)


class _Sent:
    def __init__(self, hub: Hub, key: Key) -> None:
        self._hub = hub
        self._key = key

    def wait(self) -> None:
        self._hub.wait_taken(self._key)


class _Received:
    def __init__(self, hub: Hub, key: Key, buffer: Tensor) -> None:
        self._hub = hub
        self._key = key
        self._buffer = buffer

    def wait(self) -> None:
        self._hub.take(self._key, self._copy)

    def _copy(self, item: tuple[Tensor, torch.Event | None]) -> None:
        tensor, mark = item
        _follow(mark, self._buffer.device)
        self._buffer.copy_(tensor, non_blocking=True)
        if tensor.device.type != "cpu":
            # The sender frees its tensor once this copy is taken, so the copy must be over on the device.
            torch.accelerator.current_stream(self._buffer.device).synchronize()


def _mark(device: torch.device) -> torch.Event | None:
    """Return an event after the work queued so far on an accelerator; None on the CPU, where work is done."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def _follow(mark: torch.Event | None, device: torch.device) -> None:
    """Let the device's queue wait for ``mark``."""
    if mark is not None:
        if device.type == "cpu":
            mark.synchronize()
        else:
            torch.accelerator.current_stream(device).wait_event(mark)
