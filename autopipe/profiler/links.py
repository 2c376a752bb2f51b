"""A link between two ranks is measured by ping-pong at several sizes and described by latency and bandwidth."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from autopipe.errors import InputError
from autopipe.hardware.cluster import Link

SIZES = (8, 4 * 1024, 64 * 1024, 512 * 1024, 2 * 1024**2, 8 * 1024**2)
REPEATS = 9
WARM_UPS = 2


def fit_link(samples: Sequence[tuple[int, float]]) -> Link:
    """Return the line through (bytes, nanoseconds) pairs that is best in relative error.

    Errors count relative to the measured time, so that small messages fix the latency and large ones the
    bandwidth. Latency is never below 0.

    Raises
    ------
    InputError
        If there are not two different sizes, or larger messages are not slower.
    """
    points = [(size, duration, 1.0 / duration**2) for size, duration in samples if duration > 0]
    if len({size for size, _, _ in points}) < 2:
        raise InputError(f"{len(points)} samples of one message size give no bandwidth: measure at two sizes or more.")
    total = sum(weight for _, _, weight in points)
    mean_size = sum(weight * size for size, _, weight in points) / total
    mean_time = sum(weight * duration for _, duration, weight in points) / total
    mean_square = sum(weight * size**2 for size, _, weight in points) / total
    mean_product = sum(weight * size * duration for size, duration, weight in points) / total
    slope = (mean_product - mean_size * mean_time) / (mean_square - mean_size**2)
    latency = mean_time - slope * mean_size
    if latency < 0:
        latency = 0.0
        slope = mean_product / mean_square
    if slope <= 0:
        raise InputError(
            "larger messages did not take longer, so the link has no bandwidth that could be told. "
            "Measure again on a quieter machine, with larger messages."
        )
    return Link(latency_ns=round(latency), bytes_per_s=max(1, round(1e9 / slope)))


def ping_pong(
    send: Callable[[int], None], receive: Callable[[int], None], *, starts: bool, sizes: Sequence[int] = SIZES
) -> tuple[tuple[int, float], ...]:
    """Return (bytes, nanoseconds one way) per size: half the median time of there and back.

    Both ends call this, one with ``starts``; ``send`` and ``receive`` move one message of the given bytes
    and return when the other end has got it, or this end has.
    """
    first, second = (send, receive) if starts else (receive, send)
    samples = []
    for size in sizes:
        durations = []
        for _ in range(WARM_UPS + REPEATS):
            start = time.perf_counter_ns()
            first(size)
            second(size)
            durations.append(time.perf_counter_ns() - start)
        samples.append((size, statistics.median(durations[WARM_UPS:]) / 2))
    return tuple(samples)


def measure_link(peer: int, *, group: dist.ProcessGroup | None = None, device: str | torch.device = "cpu") -> Link:
    """Return the link between this rank and rank ``peer`` of ``group``, as this rank sees it.

    Both ranks call it at the same time; the lower one starts. ``peer`` is a rank of the default group.

    Raises
    ------
    InputError
        If there is no process group, or ``peer`` is this rank.
    """
    if not dist.is_initialized():
        raise InputError("links are measured between ranks: call torch.distributed.init_process_group first.")
    if peer == dist.get_rank():
        raise InputError(f"rank {peer} has no link to itself: name another rank.")
    buffers = {size: torch.zeros(size, dtype=torch.uint8, device=device) for size in SIZES}
    here = torch.device(device)

    def send(size: int) -> None:
        dist.send(buffers[size], peer, group=group)
        _finish(here)

    def receive(size: int) -> None:
        dist.recv(buffers[size], peer, group=group)
        _finish(here)

    return fit_link(ping_pong(send, receive, starts=dist.get_rank() < peer))


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
