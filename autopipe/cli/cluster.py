"""``--cluster``, ``--gpus`` and the limits beside them become the cluster to plan for."""

import click
import msgspec

from autopipe.documents.files import load
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.hardware.profiled import measured_cluster
from autopipe.hardware.short_form import parse_cluster


def cluster_of(
    profile: Profile,
    *,
    cluster: str | None,
    gpus: int | None,
    memory_bytes: int | None,
    bytes_per_s: int | None,
    latency_ns: int | None,
) -> Cluster:
    """Return the cluster that is asked for: from a file, a line, or a number of devices like the profiled one.

    A profile of several ranks holds their devices and links, and is planned for them if nothing else is said.

    Raises
    ------
    UsageError
        If nothing says how many devices there are.
    InputError
        If two things say different numbers, or the line is wrong.
    DocumentError
        If the file is damaged.
    """
    if cluster is None and profile.ranks and gpus in (None, len(profile.ranks)):
        found = measured_cluster(profile)
    elif cluster is None:
        if gpus is None:
            raise click.UsageError("nothing says which devices there are: add --gpus or --cluster.")
        link = Link(latency_ns=profile.link_latency_ns, bytes_per_s=profile.link_bytes_per_s)
        found = Cluster.uniform(gpus, memory_bytes=profile.device_memory_bytes, intra_node=link, inter_node=link)
    else:
        found = load(cluster, Cluster) if cluster.endswith(".json") else parse_cluster(cluster, profile)
    if gpus is not None and gpus != len(found.devices):
        raise InputError(
            f"--gpus says {gpus} devices and --cluster {cluster!r} has {len(found.devices)}: leave one of them out."
        )
    if memory_bytes is not None:
        limited = tuple(msgspec.structs.replace(device, memory_bytes=memory_bytes) for device in found.devices)
        found = msgspec.structs.replace(found, devices=limited)

    def overridden(link: Link) -> Link:
        return Link(
            latency_ns=link.latency_ns if latency_ns is None else latency_ns,
            bytes_per_s=link.bytes_per_s if bytes_per_s is None else bytes_per_s,
        )

    return msgspec.structs.replace(
        found, intra_node=overridden(found.intra_node), inter_node=overridden(found.inter_node)
    )
