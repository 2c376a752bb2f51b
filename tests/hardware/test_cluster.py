"""Clusters and links."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.documents.files import decode, encode
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Device, Link, check_cluster


def test_devices_of_one_node_share_the_inner_link():
    cluster = Cluster.uniform(4, gpus_per_node=2, intra_node=Link(latency_ns=1), inter_node=Link(latency_ns=7))
    assert [cluster.link(0, rank).latency_ns for rank in range(4)] == [1, 1, 7, 7]


def test_a_link_that_was_not_measured_is_free():
    assert Link().transfer_ns(10**9) == 0


@given(st.integers(0, 10**6), st.integers(1, 10**12), st.integers(0, 10**12))
def test_a_transfer_is_latency_and_bytes_over_bandwidth(latency, bandwidth, size):
    link = Link(latency_ns=latency, bytes_per_s=bandwidth)
    exact = latency + Fraction(size * 10**9, bandwidth)
    assert exact <= link.transfer_ns(size) < exact + 1


def test_a_cluster_is_read_back_from_its_file():
    cluster = Cluster.uniform(3, memory_bytes=5, intra_node=Link(latency_ns=2, bytes_per_s=9))
    assert decode(encode(cluster), Cluster) == cluster


@pytest.mark.parametrize("sizes", [{"gpus": 0}, {"gpus": 2, "memory_bytes": 0}, {"gpus": 2, "gpus_per_node": 0}])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(InputError, match="give at least 1"):
        Cluster.uniform(**sizes)


@pytest.mark.parametrize(
    ("cluster", "path"),
    [
        (Cluster(devices=()), "no devices"),
        (Cluster(devices=(Device(speed=float("nan")),)), r"devices\[0\]\.speed"),
        (Cluster(devices=(Device(), Device(memory_bytes=-1))), r"devices\[1\]\.memory_bytes"),
        (Cluster.uniform(1, intra_node=Link(latency_ns=-1)), "intra_node.latency_ns"),
        (Cluster.uniform(1, inter_node=Link(bytes_per_s=0)), "inter_node.bytes_per_s"),
    ],
)
def test_a_number_that_cannot_be_is_named(cluster, path):
    with pytest.raises(InputError, match=path):
        check_cluster(cluster)


def test_more_devices_than_there_are_anywhere_are_refused_before_memory_is_taken_for_them() -> None:
    with pytest.raises(InputError, match="at most 65536"):
        Cluster.uniform(999_999_999_999)
