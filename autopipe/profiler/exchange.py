"""What a message takes of the processors of its two ranks is measured while both of them compute."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from autopipe.documents.conditions import Conditions
from autopipe.errors import InputError
from autopipe.profiler.links import fit_link

SIZES = (4 * 1024, 128 * 1024, 512 * 1024, 2 * 1024**2)
ROUNDS = 9
TURNS = 6
WORK_NS = 3_000_000
WIDTH = 192


class Exchange(NamedTuple):
    """By size in bytes: what one message took of its sender and of its receiver, in nanoseconds."""

    sent: tuple[tuple[int, float], ...]
    taken: tuple[tuple[int, float], ...]


def measure_exchange() -> Conditions | None:
    """Return, on every rank, what a message takes of a rank that computes on a CPU.

    All ranks call it. Neighbours in pairs compute, first alone and then with a message in either direction in every
    turn, all pairs at the same time, as in a step. What a turn is longer by is the cost of one message sent and one
    received; what the call that sends takes is the sender's part of it.

    Notes
    -----
    For ranks on the CPU, where moving bytes competes with computing. An accelerator's copies run beside it, and
    what they take of it is not measured. None where there is one rank only.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    peer = rank ^ 1
    own = _exchange(peer) if peer < size else None
    if own is None:
        _keep_company()
    every: list[Exchange | None] = [own] * size
    dist.all_gather_object(every, own)
    found = [one for one in every if one is not None]
    if not found:
        return None
    message_ns, message_rate = _line([one.sent for one in found])
    arrival_ns, arrival_rate = _line([one.taken for one in found])
    return Conditions(
        message_ns=message_ns,
        message_bytes_per_s=message_rate,
        arrival_ns=arrival_ns,
        arrival_bytes_per_s=arrival_rate,
    )


def _exchange(peer: int) -> Exchange:
    work = _Work()
    sent, taken = [], []
    for size in SIZES:
        outgoing, incoming = torch.zeros(2, size, dtype=torch.uint8)
        rounds = [_round(work, peer, outgoing, incoming) for _ in range(ROUNDS)]
        calls = statistics.median(call for call, _ in rounds)
        sent.append((size, calls))
        taken.append((size, max(0.0, statistics.median(longer for _, longer in rounds) - calls)))
    return Exchange(tuple(sent), tuple(taken))


def _keep_company() -> None:
    """Compute as long as the pairs do: a processor that is left idle would help them."""
    work = _Work()
    for _ in range(len(SIZES) * ROUNDS):
        dist.barrier()
        work.run(TURNS)
        dist.barrier()
        work.run(TURNS)


def _round(work: "_Work", peer: int, outgoing: Tensor, incoming: Tensor) -> tuple[float, float]:
    """Return the time of a call that sends, and by how much a turn with messages is longer than one without."""
    dist.barrier()
    alone = work.run(TURNS) / TURNS
    dist.barrier()
    calls = 0
    begin = time.perf_counter_ns()
    group = dist.group.WORLD
    assert group is not None
    for turn in range(TURNS):
        receive = group.recv([incoming], peer, turn)
        start = time.perf_counter_ns()
        send = group.send([outgoing], peer, turn)
        calls += time.perf_counter_ns() - start
        work.run(1)
        receive.wait()
        send.wait()
    return calls / TURNS, (time.perf_counter_ns() - begin) / TURNS - alone


class _Work:
    """A piece of computation of about `WORK_NS`."""

    def __init__(self) -> None:
        self._tensor = torch.full((WIDTH, WIDTH), 1 / WIDTH)
        self._repeats = 1
        self._repeats = max(1, round(WORK_NS / statistics.median(self.run(1) for _ in range(9))))

    def run(self, times: int) -> int:
        """Compute that many pieces; return the nanoseconds."""
        begin = time.perf_counter_ns()
        for _ in range(times * self._repeats):
            self._tensor = self._tensor @ self._tensor
        return time.perf_counter_ns() - begin


def _line(rows: Sequence[Sequence[tuple[int, float]]]) -> tuple[int, int | None]:
    """Return the time of a message and the rate of its bytes that are best for the median rank."""
    samples = [(column[0][0], statistics.median(cost for _, cost in column)) for column in zip(*rows, strict=True)]
    try:
        link = fit_link(samples)
    except InputError:
        # Larger messages cost no more that could be told.
        return round(statistics.median(cost for _, cost in samples)), None
    return link.latency_ns or 0, link.bytes_per_s
