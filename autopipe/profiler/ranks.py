"""Every rank measures the model on its own device and its links to others, and one profile holds it all."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations, pairwise
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autopipe import errors
from autopipe.documents.profile import Profile, ProfiledLink, ProfiledRank
from autopipe.errors import AutopipeError, InputError
from autopipe.hardware.cluster import Link
from autopipe.hardware.profiled import measured_cluster
from autopipe.profiler.exchange import measure_exchange
from autopipe.profiler.links import measure_link

EVERY_PAIR = 8
ATTEMPTS = 3
SAME_SPEED = 0.05

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class _Note(msgspec.Struct, frozen=True):
    """What a rank tells the others: its device and the time of one step, or why it could not measure."""

    device: str = ""
    memory_bytes: int | None = None
    node: str = ""
    step_ns: int = 0
    error: tuple[str, str] | None = None


def measure_ranks(measure: Callable[[], Profile], device: torch.device) -> Profile:
    """Return, on every rank, the first rank's profile with all ranks' devices, the links, and what messages cost.

    All measure at the same time, as they will run: ranks that share a memory or a cache slow each other down.

    Parameters
    ----------
    measure : callable
        Returns the profile of this rank's own device; called on every rank, at the same time.
    device : torch.device
        This rank's.

    Raises
    ------
    AutopipeError
        On every rank, what the first rank raised that could not measure.
    """
    rank, note, profile = dist.get_rank(), _Note(), None
    try:
        profile = measure()
        note = _Note(profile.device, profile.device_memory_bytes, _node(), _step_ns(profile))
    except AutopipeError as error:
        note = _Note(error=(type(error).__name__, f"on rank {rank}, {error}"))
    notes: list[_Note] = [note] * dist.get_world_size()
    dist.all_gather_object(notes, note)
    for other in notes:
        if other.error is not None:
            kind, message = other.error
            raise getattr(errors, kind)(message)
    ranks = described(notes)
    links = measure_links([one.node for one in ranks], device)
    conditions = measure_exchange() if device.type == "cpu" and len(ranks) > 1 else None
    answer = [profile]
    dist.broadcast_object_list(answer, src=0)
    first = answer[0]
    assert first is not None
    found = msgspec.structs.replace(first, ranks=ranks, links=links, conditions=conditions)
    near = measured_cluster(found).intra_node
    return msgspec.structs.replace(found, link_latency_ns=near.latency_ns, link_bytes_per_s=near.bytes_per_s)


def measure_links(nodes: Sequence[int], device: torch.device) -> tuple[ProfiledLink, ...]:
    """Return, on every rank, the links that could be measured: of every pair of few ranks, of neighbours of many.

    One pair at a time measures, so that none disturbs another. A link whose larger messages did not take longer
    in three attempts is left out.

    Parameters
    ----------
    nodes : sequence of int
        The machine of each rank.
    """
    size = len(nodes)
    pairs = list(combinations(range(size), 2)) if size <= EVERY_PAIR else list(pairwise(range(size)))
    own: dict[tuple[int, int], ProfiledLink] = {}
    for pair in pairs:
        if dist.get_rank() in pair:
            found = _link(pair, device)
            if found is not None:
                own[pair] = found
        dist.barrier()
    all_found: list[dict[tuple[int, int], ProfiledLink]] = [own] * size
    dist.all_gather_object(all_found, own)
    # The lower rank of a pair starts each message, so its clock has seen both ways.
    return tuple(all_found[low][low, high] for low, high in pairs if (low, high) in all_found[low])


def lead(measure: Callable[[Question], Profile], work: Callable[[Callable[[Question], Profile]], Answer]) -> Answer:
    """Return ``work(measure)`` on the first rank; whenever it measures, the ranks that `follow` do too.

    Parameters
    ----------
    measure : callable
        Returns the profile of one question; a collective call, as `measure_ranks` is.
    work : callable
        Measures as often as it needs.
    """

    def led(question: Question) -> Profile:
        dist.broadcast_object_list([(question,)], src=0)
        return measure(question)

    try:
        return work(led)
    finally:
        dist.broadcast_object_list([None], src=0)


def follow(measure: Callable[[Any], Profile]) -> None:
    """Measure whenever the first rank does, until it is through with its work."""
    while True:
        told: list[Any] = [None]
        dist.broadcast_object_list(told, src=0)
        if told[0] is None:
            return
        # What one rank cannot measure is raised on all: the first one decides what comes of it.
        with suppress(AutopipeError):
            measure(told[0][0])


@contextmanager
def moved(model: nn.Module, tree: Any, device: torch.device) -> Iterator[Any]:
    """Have ``model`` on ``device`` for a while; the value is ``tree`` with its tensors there."""
    homes = {parameter.device for parameter in model.parameters()} | {buffer.device for buffer in model.buffers()}
    if homes <= {device} or len(homes) > 1 or homes == {torch.device("meta")}:
        yield tree
        return
    model.to(device)
    try:
        yield pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)
    finally:
        model.to(next(iter(homes)))


def described(notes: Sequence[Any]) -> tuple[ProfiledRank, ...]:
    """Return every rank as it stands beside the first.

    Equal devices whose times differ by less than 5 % count as equally fast.
    """
    nodes = {name: index for index, name in enumerate(dict.fromkeys(note.node for note in notes))}
    first = notes[0]
    ranks = []
    for note in notes:
        speed = first.step_ns / note.step_ns if note.step_ns else 1.0
        if note.device == first.device and abs(speed - 1) < SAME_SPEED:
            speed = 1.0
        ranks.append(
            ProfiledRank(
                device=note.device,
                memory_bytes=note.memory_bytes,
                node=nodes[note.node],
                step_ns=note.step_ns,
                speed=round(speed, 4),
            )
        )
    return tuple(ranks)


def _link(pair: tuple[int, int], device: torch.device) -> ProfiledLink | None:
    low, high = pair
    is_low = dist.get_rank() == low
    peer = high if is_low else low
    for _ in range(ATTEMPTS):
        link = Link()
        with suppress(InputError):
            link = measure_link(peer, device=device)
        # The ends may see different times: the lower one says whether they try again.
        found = torch.tensor(link.bytes_per_s is not None, device=device)
        if is_low:
            dist.send(found, peer)
        else:
            dist.recv(found, peer)
        if bool(found):
            latency_ns, bytes_per_s = link.latency_ns or 0, link.bytes_per_s or 1
            return ProfiledLink(source=low, target=high, latency_ns=latency_ns, bytes_per_s=bytes_per_s)
    return None


def _step_ns(profile: Profile) -> int:
    costs = [*(layer.costs[-1] for layer in profile.layers), profile.loss[-1]]
    return sum(cost.forward_ns + cost.backward_ns for cost in costs)


def _node() -> str:
    """Return a name of this machine: the launcher's number of it where there is one."""
    return os.environ.get("GROUP_RANK") or socket.gethostname()
