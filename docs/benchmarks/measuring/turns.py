"""Steps of several systems take turns; a step lasts from the first rank's start to the last one's end."""

import argparse
import contextlib
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from autopipe.cli.observed import Usage, UsageMeter, foreign_share

FOREIGN_LIMIT = 0.08  # of the machine, used by other programs: a round above it does not count
BEST = 5
OURS = "autopipe"
PR_SET_TIMERSLACK = 29  # Linux lets a sleeping thread wake 50 us late unless told otherwise

Step = Callable[[], Any]
System = Callable[[], AbstractContextManager[Step]]


class Row(NamedTuple):
    """Seconds of one step of each system, and the share of the machine that other programs used meanwhile."""

    seconds: dict[str, float]
    foreign: float


def launch(run: Callable[..., None], ranks: int, *arguments: Any) -> None:
    """Call ``run(rank, *arguments)`` on ``ranks`` processes of one thread that form a gloo group."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_start, (run, ranks, folder, arguments), nprocs=ranks)


def _start(rank: int, run: Callable[..., None], ranks: int, folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    processors = sorted(os.sched_getaffinity(0))
    if ranks <= len(processors):
        os.sched_setaffinity(0, {processors[rank]})
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    run(rank, *arguments)
    dist.destroy_process_group()


def seconds(step: Step) -> float:
    """Return how long a step takes, the same on every rank."""
    dist.barrier()
    stamps = torch.tensor([-time.monotonic(), 0.0], dtype=torch.float64)
    step()
    stamps[1] = time.monotonic()
    dist.all_reduce(stamps, op=dist.ReduceOp.MAX)
    return float(stamps.sum())


def rounds(steps: Mapping[str, Step], count: int, limit_s: float) -> list[Row]:
    """Return rounds of one step of each, in turn and back, until ``count`` were quiet or the time is over."""
    rows: list[Row] = []
    kept, deadline = 0, time.monotonic() + limit_s
    for step in steps.values():
        seconds(step)
    while not rows or (kept < count and agreed(time.monotonic() < deadline)):
        meter = UsageMeter()
        row = {name: seconds(steps[name]) for name in list(steps)[:: 1 if len(rows) % 2 else -1]}
        usages: list[Usage] = [meter.read()] * dist.get_world_size()
        dist.all_gather_object(usages, usages[0])
        rows.append(Row(row, agreed(foreign_share(usages) or 0.0)))
        kept += rows[-1].foreign <= FOREIGN_LIMIT
    return rows


def agreed(value: Any) -> Any:
    """Return the first rank's value on every rank."""
    told = [value]
    dist.broadcast_object_list(told)
    return told[0]


def contest(systems: Mapping[str, System], options: argparse.Namespace) -> tuple[dict[str, float], list[Row]]:
    """Return the seconds of every system's best step, and rounds of the best five and `OURS`."""
    once = {}
    for name, system in systems.items():
        with system() as step:
            seconds(step)
            once[name] = min(seconds(step) for _ in range(options.times))
    best = sorted((name for name in once if name != OURS), key=once.__getitem__)[:BEST]
    with contextlib.ExitStack() as stack:
        steps = {name: stack.enter_context(systems[name]()) for name in (OURS, *best)}
        return once, rounds(steps, options.rounds, options.limit_s)


def quiet(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rounds that count, and say how many they are; all of them, said so, where none was quiet."""
    kept = [row for row in rows if row.foreign <= FOREIGN_LIMIT]
    loads = [row.foreign for row in rows]
    print(
        f"{len(kept)} of {len(rows)} rounds quiet (other programs used at most {FOREIGN_LIMIT:.0%} of the machine); "
        f"they used {min(loads):.0%} to {max(loads):.0%}, median {statistics.median(loads):.0%}"
    )
    if not kept:
        print("NO ROUND WAS QUIET: what follows is of all rounds and settles nothing")
    return kept or rows


def report(once: Mapping[str, float], rows: Sequence[Row], predicted_ns: Mapping[str, int]) -> float:
    """Print what `contest` gave, and return our median step over the best median."""
    kept = quiet(rows)
    ordered = sorted(once, key=once.__getitem__)
    print(f"once: {len(once)} plans, {1e3 * once[ordered[0]]:.1f} to {1e3 * once[ordered[-1]]:.1f} ms")
    print(f"{'plan':44s} {'predicted':>9s} {'once':>8s} {'median':>8s}  range, ms")
    medians = {}
    for name in kept[0].seconds:
        times = sorted(1e3 * row.seconds[name] for row in kept)
        medians[name] = statistics.median(times)
        predicted, first = predicted_ns[name] / 1e6, 1e3 * once[name]
        print(f"{name:44s} {predicted:9.1f} {first:8.1f} {medians[name]:8.1f}  {times[0]:.1f} to {times[-1]:.1f}")
    best = min(medians, key=medians.__getitem__)
    ratios = sorted(row.seconds[OURS] / row.seconds[best] for row in kept)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    print(
        f"{OURS} over the best median ({best}): {medians[OURS] / medians[best]:.4f}; in the same round "
        f"{statistics.median(ratios):.4f}, quartiles {low:.4f} and {high:.4f}",
        flush=True,
    )
    return medians[OURS] / medians[best]


def add_options(parser: argparse.ArgumentParser, *, times: int) -> None:
    """Let the number of rounds and their time be chosen."""
    parser.add_argument("--rounds", type=int, default=9, help="quiet ones, of the best five plans and ours")
    parser.add_argument("--times", type=int, default=times, help="how often every plan is timed first")
    parser.add_argument("--limit-s", type=float, default=120, help="of the rounds, quiet or not")
    parser.add_argument("--quick", action="store_true", help="see that it runs: few plans, few rounds")
