"""The cells of a search: devices laid out as ranks and replicas, and a micro-batch size; each with a cheap bound."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopipe.costs.size import SizedProfile, at_size
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Device
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.levels import Levels, all_levels, fixed_level
from autopipe.planner.request import Request, micro_batch_sizes, recomputed_layers

MOST_ORDERS = 120


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Devices laid out as a grid, and the micro-batches of each replica.

    ``bound_ns`` is a time under every step: no rank is faster than its share of the work, and none holds less
    than its share of what is done once per step.
    """

    grid: DeviceGrid
    micro_batch_size: int
    micro_batches: int
    bound_ns: int

    @property
    def order(self) -> tuple[object, ...]:
        """By what cells are looked at in turn: the lowest bound first, then fewer replicas, devices as they are."""
        return self.bound_ns, self.grid.replicas, self.micro_batches, self.grid.order


@dataclass(frozen=True)
class Tables:
    """The costs at each micro-batch size, made when they are first asked for."""

    profile: Profile
    request: Request
    _sized: dict[int, SizedProfile] = field(default_factory=dict)
    _base: dict[int, Levels] = field(default_factory=dict)
    _all: dict[int, Levels] = field(default_factory=dict)

    def sized(self, size: int) -> SizedProfile:
        """Return the costs of layers and values at a size."""
        if size not in self._sized:
            self._sized[size] = at_size(self.profile, size)
        return self._sized[size]

    def base(self, size: int) -> Levels:
        """Return the costs of intervals in which only those layers recompute that must."""
        if size not in self._base:
            asked = recomputed_layers(self.sized(size), self.request)
            self._base[size] = fixed_level(self.sized(size), asked or ())
        return self._base[size]

    def levels(self, size: int) -> Levels:
        """Return the costs of intervals at all levels of recompute that may be chosen."""
        if recomputed_layers(self.sized(size), self.request) is not None:
            return self.base(size)
        if size not in self._all:
            self._all[size] = all_levels(self.sized(size), self.base(size).base)
        return self._all[size]


def cells(cluster: Cluster, tables: Tables, request: Request, shapes: Sequence[tuple[int, int]]) -> list[Cell]:
    """Return every cell of the search, in the order in which to look at them.

    Raises
    ------
    InputError
        If no micro-batch size suits any shape.
    """
    found, refusal = [], None
    for ranks, replicas in shapes:
        try:
            sizes = micro_batch_sizes(tables.profile, request.batch_size // replicas, request.micro_batch_size)
        except InputError as error:
            refusal = refusal or error
            continue
        for grid in grids(cluster, ranks, replicas):
            for size in sizes:
                count = -(-request.batch_size // (replicas * size))
                bound = _bound_ns(tables.sized(size), grid, count)
                found.append(Cell(grid=grid, micro_batch_size=size, micro_batches=count, bound_ns=bound))
    if not found:
        assert refusal is not None
        raise refusal
    return sorted(found, key=lambda cell: cell.order)


def grids(cluster: Cluster, ranks: int, replicas: int) -> Iterator[DeviceGrid]:
    """Yield the layouts of the devices that are worth a look.

    Equal devices stand in turn, so that the replicas of a rank are neighbours; where the links differ, also with
    neighbours as the ranks of one replica. Unequal devices are put into every order of their kinds, or, if these
    are more than `MOST_ORDERS`, in order of speed and of memory, both ways.
    """
    count = ranks * replicas
    in_turn = tuple(range(count))
    kinds = [_kind(device, cluster) for device in cluster.devices[:count]]
    orders: dict[tuple[int, ...], None] = {in_turn: None}
    if cluster.intra_node != cluster.inter_node:
        orders[tuple(rank + ranks * replica for rank in range(ranks) for replica in range(replicas))] = None
    if len({(device.speed, device.memory_bytes) for device in cluster.devices[:count]}) > 1:
        orders |= dict.fromkeys(_orders(cluster, kinds, ranks, replicas))
    seen = set()
    for order in orders:
        grid = DeviceGrid.of(cluster, ranks, replicas, order)
        looks = tuple(grid.devices[r].speed for r in range(ranks)), tuple(d.memory_bytes for d in grid.devices)
        links = tuple(grid.link(rank, rank + 1) for rank in range(ranks - 1))
        inner = tuple(grid.replica_link(rank) for rank in range(ranks)) if replicas > 1 else ()
        if (looks, links, inner) not in seen:
            seen.add((looks, links, inner))
            yield grid


def _orders(
    cluster: Cluster, kinds: Sequence[tuple[float, int, int]], ranks: int, replicas: int
) -> Iterator[tuple[int, ...]]:
    """Yield orders of unequal devices: alike ones share a rank, and the ranks are in every order of their kinds."""
    alike = sorted(range(len(kinds)), key=lambda number: (kinds[number], number))
    groups = [tuple(alike[at : at + replicas]) for at in range(0, len(alike), replicas)]
    looks = [tuple(kinds[number] for number in group) for group in groups]
    if _arrangements(looks) <= MOST_ORDERS:
        arranged: Iterator[Sequence[tuple[int, ...]]] = _distinct(groups, looks)
    else:
        by_memory = sorted(range(ranks), key=lambda at: (looks[at][0][1], looks[at]))
        several = [range(ranks), range(ranks - 1, -1, -1), by_memory, by_memory[::-1]]
        arranged = ([groups[at] for at in order] for order in several)
    for arrangement in arranged:
        yield tuple(number for group in arrangement for number in group)


def _arrangements(looks: Sequence[object]) -> int:
    count = 1
    for position, look in enumerate(looks, start=1):
        count = count * position // sum(other == look for other in looks[:position])
    return count


def _distinct(groups: Sequence[tuple[int, ...]], looks: Sequence[object]) -> Iterator[Sequence[tuple[int, ...]]]:
    """Yield the orders of ``groups`` in which those that look alike keep their own order."""
    if not groups:
        yield []
        return
    for at, group in enumerate(groups):
        if looks[at] in looks[:at]:
            continue
        rest, others = [*groups[:at], *groups[at + 1 :]], [*looks[:at], *looks[at + 1 :]]
        for tail in _distinct(rest, others):
            yield [group, *tail]


def _kind(device: Device, cluster: Cluster) -> tuple[float, int, int]:
    """Return what tells a device from others: speed, memory, and its machine where links differ."""
    node = device.node if cluster.intra_node != cluster.inter_node else 0
    return -device.speed, -(device.memory_bytes or 1 << 62), node


def least_stage_ns(times: Sequence[int], stages: int) -> int:
    """Return the least time that the longest of ``stages`` rows of layers can take, wherever cuts are legal."""
    sums = np.concatenate(([0], np.cumsum(times)))
    low, high = max(int(sums[-1]) // stages, max(times)), int(sums[-1])
    while low < high:
        middle = (low + high) // 2
        at, used = 0, 0
        while at < len(times) and used < stages:
            at, used = int(np.searchsorted(sums, sums[at] + middle, side="right")) - 1, used + 1
        low, high = (low, middle) if at >= len(times) else (middle + 1, high)
    return low


def _bound_ns(sized: SizedProfile, grid: DeviceGrid, micro_batches: int) -> int:
    speeds = [device.speed for device in grid.devices]
    times = [cost.forward_ns + cost.backward_ns for cost in sized.costs]
    times[-1] += sized.loss.forward_ns + sized.loss.backward_ns
    optimizer = sum(layer.optimizer_ns or 0 for layer in sized.profile.layers)
    shared = max((layer.optimizer_ns or 0 for layer in sized.profile.layers), default=0) if sized.profile.shared else 0
    steady = micro_batches * max(sum(times) / sum(speeds), max(times) / max(speeds))
    return int(steady + max(0, optimizer - shared * len(sized.profile.shared)) / sum(speeds))
