"""A cluster is the devices that a plan may use, and the links between them."""

from typing import Protocol

import msgspec

from autopipe.documents.arguments import typed
from autopipe.documents.files import Document
from autopipe.documents.plan import MOST_DEVICES
from autopipe.errors import InputError

LARGEST_LATENCY_NS = 1 << 50


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way from one rank to another: ``None`` where it was not measured, which predictions take as free."""

    latency_ns: int | None = None
    bytes_per_s: int | None = None

    def transmit_ns(self, size_bytes: int) -> int:
        """Return how long ``size_bytes`` occupy the link, latency not included, rounded up."""
        return 0 if self.bytes_per_s is None else -(-size_bytes * 1_000_000_000 // self.bytes_per_s)

    def transfer_ns(self, size_bytes: int) -> int:
        """Return the time from the start of a transfer to its arrival."""
        return (self.latency_ns or 0) + self.transmit_ns(size_bytes)


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device: its memory (None: not known), its speed beside the profiled device, the machine it is in."""

    name: str = "device"
    memory_bytes: int | None = None
    speed: float = 1.0
    node: int = 0


class Ranks(Protocol):
    """What every rank of a pipeline computes on, and the way between two ranks."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """By rank."""
        ...

    def link(self, source: int, target: int) -> Link:
        """Return the link between two ranks."""
        ...


class Cluster(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.cluster"):
    """Devices in the order of their ranks, the link inside a machine and the link between machines."""

    devices: tuple[Device, ...]
    intra_node: Link = Link()
    inter_node: Link = Link()

    @classmethod
    @typed
    def uniform(
        cls,
        gpus: int,
        *,
        memory_bytes: int | None = None,
        gpus_per_node: int | None = None,
        intra_node: Link | None = None,
        inter_node: Link | None = None,
    ) -> "Cluster":
        """Return a cluster of ``gpus`` equal devices, ``gpus_per_node`` to a machine (all in one if not given).

        Raises
        ------
        InputError
            If a number is below 1.
        """
        for name, number in (("gpus", gpus), ("gpus_per_node", gpus_per_node), ("memory_bytes", memory_bytes)):
            if number is not None and number < 1:
                raise InputError(f"a cluster with {name} = {number} cannot compute anything: give at least 1.")
        if gpus > MOST_DEVICES:
            raise InputError(
                f"a cluster of {gpus} devices is more than can be planned for: give at most {MOST_DEVICES}."
            )
        per_node = gpus_per_node or gpus
        devices = tuple(Device(memory_bytes=memory_bytes, node=rank // per_node) for rank in range(gpus))
        return cls(devices=devices, intra_node=intra_node or Link(), inter_node=inter_node or Link())

    def link(self, source: int, target: int) -> Link:
        """Return the link between two ranks.

        Raises
        ------
        InputError
            If there are no such ranks.
        TypeError
            If they are no whole numbers.
        """
        for rank in (source, target):
            if rank not in range(len(self.devices)):
                raise InputError(f"there is no rank {rank}: the cluster has {len(self.devices)} devices.")
        same = self.devices[source].node == self.devices[target].node
        return self.intra_node if same else self.inter_node


def check_cluster(cluster: Cluster) -> None:
    """Return if every number of ``cluster`` can be used.

    Raises
    ------
    InputError
        With the path of the first number that cannot.
    """
    if not cluster.devices:
        raise InputError("the cluster has no devices: give at least one.")
    for rank, device in enumerate(cluster.devices):
        if not 0 < device.speed < float("inf"):
            raise InputError(
                f"devices[{rank}].speed is {device.speed}: give a positive number, 1 for the profiled one."
            )
        if device.memory_bytes is not None and device.memory_bytes < 1:
            raise InputError(f"devices[{rank}].memory_bytes is {device.memory_bytes}: give at least 1.")
    for name, link in (("intra_node", cluster.intra_node), ("inter_node", cluster.inter_node)):
        if link.latency_ns is not None and not 0 <= link.latency_ns <= LARGEST_LATENCY_NS:
            raise InputError(f"{name}.latency_ns is {link.latency_ns}: give 0 to 2**50.")
        if link.bytes_per_s is not None and link.bytes_per_s < 1:
            raise InputError(f"{name}.bytes_per_s is {link.bytes_per_s}: give at least 1.")
