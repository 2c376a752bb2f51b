"""The cluster that a profile was measured on: the devices of its ranks and the links between them."""

from collections.abc import Sequence

from autopipe.documents.profile import Profile, ProfiledLink
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Device, Link

MESSAGE_BYTES = 2**20


def measured_cluster(profile: Profile, *, memory_bytes: int | None = None) -> Cluster:
    """Return the cluster whose ranks ``profile`` has measured.

    Of the links inside machines, and of those between machines, the one with the median time for a message of
    1 MiB stands for all.

    Parameters
    ----------
    memory_bytes : int, optional
        The limit of each device, in place of its memory.

    Raises
    ------
    InputError
        If the profile was measured on one device alone.
    """
    if not profile.ranks:
        raise InputError(
            f"the profile of {profile.model} was measured on one device alone, so it holds no cluster: measure it "
            "under torchrun (torchrun --nproc-per-node 4 -m autopipe profile ...), or say how many GPUs there are."
        )
    node = [rank.node for rank in profile.ranks]
    inside = [link for link in profile.links if node[link.source] == node[link.target]]
    between = [link for link in profile.links if node[link.source] != node[link.target]]
    return Cluster(
        devices=tuple(
            Device(
                name=rank.device,
                memory_bytes=rank.memory_bytes if memory_bytes is None else memory_bytes,
                speed=rank.speed,
                node=rank.node,
            )
            for rank in profile.ranks
        ),
        intra_node=_typical(inside or between),
        inter_node=_typical(between or inside),
    )


def _typical(links: Sequence[ProfiledLink]) -> Link:
    """Return the link with the median time for a message, the slower of two in the middle; a free one of none."""
    known = [Link(latency_ns=link.latency_ns, bytes_per_s=link.bytes_per_s) for link in links]
    ordered = sorted(known, key=lambda link: link.transfer_ns(MESSAGE_BYTES))
    return ordered[len(ordered) // 2] if ordered else Link()
