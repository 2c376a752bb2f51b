"""Clusters written in a line."""

import pytest

from autopipe.errors import InputError
from autopipe.hardware.lookup import find_device
from autopipe.hardware.short_form import parse_cluster
from tests.profiles import chain_profile

H100, A100, V100 = (find_device(name) for name in ("h100-sxm", "a100-80-sxm", "v100-32"))


def profiled_on(device):
    profile = chain_profile([10, 10])
    return type(profile)(
        **{name: getattr(profile, name) for name in profile.__struct_fields__}
        | {"device": device.title, "device_memory_bytes": device.usable_bytes, "dtype": "float16"}
    )


def test_machines_of_equal_devices():
    cluster = parse_cluster("2x8:h100-sxm:net=50GB/s:net=5us", profiled_on(H100))
    assert [device.node for device in cluster.devices] == [0] * 8 + [1] * 8
    assert {device.speed for device in cluster.devices} == {1.0}
    assert {device.memory_bytes for device in cluster.devices} == {H100.usable_bytes}
    assert cluster.intra_node == H100.link
    assert (cluster.inter_node.bytes_per_s, cluster.inter_node.latency_ns) == (50 * 10**9, 5000)


def test_unequal_devices_have_unequal_speed_and_memory_and_the_slowest_link():
    cluster = parse_cluster("4:a100-80-sxm+4:v100-32:net=25GB/s", profiled_on(A100))
    assert len(cluster.devices) == 8
    assert cluster.devices[0].speed == 1.0 > cluster.devices[4].speed
    assert cluster.devices[4].memory_bytes == V100.usable_bytes
    assert cluster.intra_node.bytes_per_s == V100.link_bytes_per_s.value


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("2x8", "no group of machines"),
        ("x8:h100-sxm", "no group of machines"),
        ("0x8:h100-sxm", "at least 1 machine"),
        ("2x8:h100-sxm", "add for example :net=50GB/s"),
        ("2x8:h100-sxm:net=50", "net= or link="),
        ("8:h100-smx", "Near it: .*h100-sxm"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(text, match):
    with pytest.raises(InputError, match=match):
        parse_cluster(text, profiled_on(H100))


def test_devices_are_not_compared_with_an_unknown_one():
    with pytest.raises(InputError, match="--device h100-sxm"):
        parse_cluster("8:h100-sxm", chain_profile([10, 10]))
