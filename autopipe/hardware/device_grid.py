"""A device grid gives every pipeline rank its replicas' devices, of which the slowest sets the rank's pace."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autopipe.hardware.cluster import Cluster, Device, Link


@dataclass(frozen=True, kw_only=True)
class DeviceGrid:
    """Which device of ``cluster`` computes which pipeline rank of which replica.

    Attributes
    ----------
    rows : tuple of tuples of int
        By pipeline rank, then replica: the number of the device in the cluster.
    """

    cluster: Cluster
    rows: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, cluster: Cluster, ranks: int, replicas: int = 1, order: Sequence[int] = ()) -> "DeviceGrid":
        """Return the grid in which rank r's replica k is on device ``order[r * replicas + k]``, or in turn."""
        order = order or range(ranks * replicas)
        rows = tuple(tuple(order[rank * replicas : (rank + 1) * replicas]) for rank in range(ranks))
        return cls(cluster=cluster, rows=rows)

    @property
    def replicas(self) -> int:
        """How many devices share the batch at each rank, d."""
        return len(self.rows[0])

    @property
    def order(self) -> tuple[int, ...]:
        """The devices rank by rank, () where they are in turn."""
        flat = tuple(device for row in self.rows for device in row)
        return () if flat == tuple(range(len(flat))) else flat

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """By rank: a device with the least speed and the least memory of the rank's replicas."""
        return tuple(_weakest([self.cluster.devices[number] for number in row]) for row in self.rows)

    def link(self, source: int, target: int) -> Link:
        """Return a link no better than that of any replica between two ranks."""
        pairs = zip(self.rows[source], self.rows[target], strict=True)
        return _worst([self.cluster.link(one, other) for one, other in pairs])

    def replica_link(self, rank: int) -> Link:
        """Return a link no better than that of any neighbours in the ring of a rank's replicas."""
        row = self.rows[rank]
        return _worst([self.cluster.link(one, other) for one, other in zip(row, row[1:] + row[:1], strict=True)])


def _weakest(devices: Sequence[Device]) -> Device:
    known = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    return Device(
        name=devices[0].name,
        memory_bytes=min(known, default=None),
        speed=min(device.speed for device in devices),
        node=devices[0].node,
    )


def _worst(links: Sequence[Link]) -> Link:
    if len(set(links)) == 1:
        return links[0]
    latencies = [link.latency_ns for link in links if link.latency_ns is not None]
    speeds = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    return Link(latency_ns=max(latencies, default=None), bytes_per_s=min(speeds, default=None))
