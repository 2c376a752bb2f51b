"""Ranks of replicas on the devices of a cluster."""

from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.hardware.device_grid import DeviceGrid

FAST, SLOW = Link(latency_ns=1, bytes_per_s=100), Link(latency_ns=9, bytes_per_s=10)


def test_replicas_of_a_rank_stand_side_by_side():
    cluster = Cluster.uniform(8, gpus_per_node=4, intra_node=FAST, inter_node=SLOW)
    grid = DeviceGrid.of(cluster, 4, 2)
    assert grid.rows == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert (grid.link(0, 1), grid.link(1, 2), grid.replica_link(0)) == (FAST, SLOW, FAST)
    assert grid.order == ()


def test_another_order_moves_the_slow_link_to_the_replicas():
    cluster = Cluster.uniform(4, gpus_per_node=2, intra_node=FAST, inter_node=SLOW)
    grid = DeviceGrid.of(cluster, 2, 2, (0, 2, 1, 3))
    assert (grid.link(0, 1), grid.replica_link(0), grid.order) == (FAST, SLOW, (0, 2, 1, 3))


def test_the_weakest_replica_speaks_for_its_rank():
    cluster = Cluster(devices=(Device(speed=2.0, memory_bytes=5), Device(memory_bytes=9), Device(), Device()))
    grid = DeviceGrid.of(cluster, 2, 2)
    assert [(device.speed, device.memory_bytes) for device in grid.devices] == [(1.0, 5), (1.0, None)]
