"""A cluster in a line: ``2x8:h100-sxm:net=50GB/s`` is 2 machines of 8 devices with 50 GB/s between machines."""

import re

import msgspec

from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.hardware.lookup import find_device, match_device
from autopipe.hardware.roofline import speed_beside
from autopipe.hardware.specification import Specification

FORM = "write [MACHINES x] DEVICES : NAME, for example 2x8:h100-sxm:net=50GB/s or 4:a100-80-sxm+4:v100-32:net=25GB/s"

_COUNT = re.compile(r"(?:([0-9]{1,5})x)?([0-9]{1,5})")
_OPTION = re.compile(r"(net|link)=([0-9]+(?:\.[0-9]+)?)(GB/s|MB/s|us|ns)")
_UNITS = {"GB/s": 10**9, "MB/s": 10**6, "us": 1000, "ns": 1}


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """Equal machines of a cluster, with what was said of the links inside and between them."""

    count: int
    devices: int
    device: Specification
    net: Link
    link: Link


def parse_cluster(text: str, profile: Profile) -> Cluster:
    """Return the cluster that ``text`` writes, with speeds beside the device of ``profile``.

    Parameters
    ----------
    text : str
        Groups of machines joined by ``+``: how many machines (1 if left out), devices in each, the device's name in
        the catalogue or its file; then ``net=`` for the link between machines and ``link=`` for that inside one, each
        with GB/s or us, again for the other of the two.

    Raises
    ------
    InputError
        If it cannot be read, a device is unknown, machines have no link between them, or the profile's device is
        unknown, so that other devices cannot be compared with it.

    Notes
    -----
    A cluster has one link inside machines and one between them: where groups differ, the slowest.
    """
    groups = [_machines(part, text) for part in text.split("+")]
    devices = []
    node = 0
    for group in groups:
        speed = _speed(group.device, profile, groups)
        for _ in range(group.count):
            devices += [
                Device(name=group.device.name, memory_bytes=group.device.usable_bytes, speed=speed, node=node)
            ] * group.devices
            node += 1
    inter_node = _slowest([group.net for group in groups])
    if node > 1 and inter_node.bytes_per_s is None:
        raise InputError(
            f"the cluster {text!r} has {node} machines, and nothing says how fast the way between them is: add for "
            "example :net=50GB/s."
        )
    intra_node = _slowest([_filled(group.link, group.device.link) for group in groups])
    return Cluster(devices=tuple(devices), intra_node=intra_node, inter_node=inter_node)


def _machines(part: str, text: str) -> Machines:
    count, *rest = part.split(":")
    match = _COUNT.fullmatch(count.strip())
    if match is None or not rest:
        raise InputError(f"{part!r} in the cluster {text!r} is no group of machines: {FORM}.")
    found = {"net": Link(), "link": Link()}
    for option in rest[1:]:
        option_match = _OPTION.fullmatch(option.strip())
        if option_match is None:
            raise InputError(f"{option!r} in the cluster {text!r} is no link: write net= or link= with GB/s or us.")
        name, number, unit = option_match.groups()
        field = "bytes_per_s" if unit.endswith("B/s") else "latency_ns"
        found[name] = msgspec.structs.replace(found[name], **{field: round(float(number) * _UNITS[unit])})
    machines, devices = int(match[1] or 1), int(match[2])
    if machines < 1 or devices < 1:
        raise InputError(f"{part!r} in the cluster {text!r} has no devices: give at least 1 machine and 1 device.")
    device = find_device(rest[0].strip())
    return Machines(count=machines, devices=devices, device=device, net=found["net"], link=found["link"])


def _speed(device: Specification, profile: Profile, groups: list[Machines]) -> float:
    here = [group.device for group in groups]
    profiled = match_device(profile.device, profile.device_memory_bytes, among=here) or match_device(
        profile.device, profile.device_memory_bytes
    )
    if profiled is None:
        raise InputError(
            f"the profile was taken on {profile.device!r}, of which the catalogue has no figures, so nothing tells "
            f"how fast {device.name} is beside it. Profile the model for this cluster with --device {device.name}, or "
            "give the cluster as a JSON file with a speed for each device."
        )
    return 1.0 if profiled == device else speed_beside(device, profiled, profile.dtype)


def _filled(link: Link, other: Link) -> Link:
    return Link(
        latency_ns=other.latency_ns if link.latency_ns is None else link.latency_ns,
        bytes_per_s=other.bytes_per_s if link.bytes_per_s is None else link.bytes_per_s,
    )


def _slowest(links: list[Link]) -> Link:
    """Return the link that is the worst of ``links`` in each respect, as far as known."""
    latencies = [link.latency_ns for link in links if link.latency_ns is not None]
    bandwidths = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    return Link(latency_ns=max(latencies, default=None), bytes_per_s=min(bandwidths, default=None))
