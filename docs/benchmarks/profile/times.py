"""Compare profiled times with measured ones: of the whole step, of groups of layers, of sizes between.

The sum of all layers and the loss is held against the unsplit step of the same rounds. A group of layers is held
against itself, run as an executor runs a stage: alone, from received values and received gradients, onto gradients
that are there; what a stage without layers takes in its place is left out. Times interpolated for a micro-batch
size are held against those of a profile of this size. Profiles and groups take turns, so that a slow spell of the
machine falls on both.

    OMP_NUM_THREADS=1 python docs/benchmarks/profile/times.py GPT
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.costs.size import at_size
from autopipe.costs.time import IntervalTimes, interval_times
from autopipe.documents.profile import Profile
from autopipe.profiler import measure
from autopipe.profiler.load import ForeignLoad
from autopipe.recorder import Recording, record
from autopipe.stages.split import Stage, split

sys.path.insert(0, str(Path(__file__).parent))

from memory import SUBJECTS, Subject

FOREIGN_LIMIT = 0.08  # a repeat is dropped when other processes used more than this share of the machine
GROUPS = 12
STEPS = 7
WARM_UPS = 2


class Empty(nn.Module):
    """A stage without layers."""

    def forward(self, *values: Any) -> tuple[Any, ...]:
        return values


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layers ``begin`` to ``end - 1`` as a stage, and what it receives at one micro-batch size."""

    begin: int
    end: int
    module: nn.Module
    is_last: bool
    inputs: tuple[Tensor, ...]
    target: Tensor


def random_bounds(layers: int) -> list[tuple[int, int]]:
    """Return (begin, end) of different groups, the same for every call, the whole model not among them."""
    drawn = random.Random(0)
    every = [(begin, end) for end in range(1, layers + 1) for begin in range(end) if (begin, end) != (0, layers)]
    return sorted(drawn.sample(every, GROUPS))


def groups_of(subject: Subject, recording: Recording, size: int) -> list[Group]:
    """Return random groups with the values that they receive."""
    layers = len(recording.graph.layers)
    groups = []
    for begin, end in random_bounds(layers):
        values: dict[str, Tensor] = {}
        for stage in split(recording.module, recording.graph, sorted({0, begin, end, layers})):
            inputs = (subject.inputs[:size],) if stage.begin == 0 else tuple(values[name] for name in stage.inputs)
            if stage.begin == begin:
                groups.append(_group(stage, inputs, subject.target[:size]))
                break
            with torch.no_grad():
                made = stage.module(*inputs)
            values.update(zip(stage.outputs, made, strict=True))
    return groups


def _group(stage: Stage, inputs: tuple[Tensor, ...], target: Tensor) -> Group:
    return Group(
        begin=stage.begin, end=stage.end, module=stage.module, is_last=stage.is_last, inputs=inputs, target=target
    )


def group_ns(group: Group, subject: Subject) -> float:
    """Return the median nanoseconds of forward and backward, without those of an empty stage."""
    own, empty = [], []
    for _ in range(STEPS):
        own.append(_step_ns(group, group.module, subject, is_last=group.is_last))
        empty.append(_step_ns(group, Empty(), subject, is_last=False))
    return statistics.median(own[WARM_UPS:]) - statistics.median(empty[WARM_UPS:])


def _step_ns(group: Group, module: nn.Module, subject: Subject, *, is_last: bool) -> int:
    leaves = [tensor.detach().requires_grad_(group.begin > 0 and tensor.is_floating_point()) for tensor in group.inputs]
    begin = time.thread_time_ns()
    result = module(*(leaf.view_as(leaf) for leaf in leaves))
    made = (subject.loss(result, group.target),) if is_last else result
    forward = time.thread_time_ns() - begin
    grown = [value for value in made if value.requires_grad]
    received = [torch.ones_like(value) for value in grown]
    begin = time.thread_time_ns()
    if grown:
        torch.autograd.backward(grown, received)
    return forward + time.thread_time_ns() - begin


def total_ns(times: IntervalTimes, begin: int, end: int) -> int:
    """Return the predicted nanoseconds of layers ``begin`` to ``end - 1``."""
    return int(times.forward_ns[begin, end] + times.backward_ns[begin, end])


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Relative errors of one repeat, by size or by (size, begin, end), and the foreign load of its worst part."""

    sums: dict[int, float]
    groups: dict[tuple[int, int, int], float]
    stages: dict[tuple[int, int, int], float]
    step_ns: dict[int, int]
    own_ns: dict[tuple[int, int, int], float]
    load: float


def one_repeat(subject: Subject, recording: Recording, groups: dict[int, list[Group]], budget_s: float) -> Repeat:
    """Profile the outer sizes and the middle one, time every group, and compare."""
    outer = _profile(subject, recording, tuple(groups), budget_s)
    middle_size = len(subject.inputs) // 2
    middle = _profile(subject, recording, (middle_size,), budget_s / 2)
    load = ForeignLoad()
    errors, own_ns = {}, {}
    for size, members in groups.items():
        times = interval_times(at_size(outer, size))
        for group in members:
            key = size, group.begin, group.end
            own_ns[key] = group_ns(group, subject)
            errors[key] = total_ns(times, group.begin, group.end) / own_ns[key] - 1
    layers = len(outer.layers)
    read, found = (interval_times(at_size(profile, middle_size)) for profile in (outer, middle))
    thirds = list(pairwise((0, layers // 3, 2 * layers // 3, layers)))
    stages = {(middle_size, *bounds): total_ns(read, *bounds) / total_ns(found, *bounds) - 1 for bounds in thirds}
    loads = (outer.foreign_load, middle.foreign_load, load.share())
    return Repeat(
        sums={whole.micro_batch: whole.layers_ns / whole.step_ns - 1 for whole in outer.whole},
        groups=errors,
        stages=stages,
        step_ns={whole.micro_batch: whole.step_ns for whole in outer.whole},
        own_ns=own_ns,
        load=max(one or 0.0 for one in loads),
    )


def _profile(subject: Subject, recording: Recording, sizes: tuple[int, ...], budget_s: float) -> Profile:
    return measure(
        subject.model,
        (subject.inputs,),
        target=subject.target,
        loss_fn=subject.loss,
        micro_batches=sizes,
        budget_s=budget_s,
        recording=recording,
    )


def print_sums(name: str, quiet: Sequence[Repeat], sizes: Sequence[int]) -> None:
    """Print the error of the sum of layers and loss, and that of each repeat."""
    for size in sizes:
        found = [repeat.sums[size] for repeat in quiet]
        step = statistics.median(repeat.step_ns[size] for repeat in quiet) / 1e6
        each = " ".join(f"{100 * one:+.1f}" for one in found)
        print(f"| {name} | {size} | {step:.2f} ms | {statistics.median(found):+.1%} | {each} |")


def print_groups(name: str, quiet: Sequence[Repeat], sizes: Sequence[int], *, verbose: bool) -> None:
    """Print mean and worst of the groups' errors, each the median of its repeats."""
    for size in sizes:
        keys = [key for key in quiet[0].groups if key[0] == size]
        errors = {key: statistics.median(repeat.groups[key] for repeat in quiet) for key in keys}
        own = {key: statistics.median(repeat.own_ns[key] for repeat in quiet) for key in keys}
        worst = max(keys, key=lambda key: abs(errors[key]))
        mean = statistics.fmean(map(abs, errors.values()))
        where = f"layers {worst[1]} to {worst[2] - 1}, {own[worst] / 1e6:.2f} ms"
        single = max(abs(repeat.groups[key]) for repeat in quiet for key in keys)
        print(f"| {name} | {size} | {len(keys)} | {mean:.1%} | {errors[worst]:+.1%} ({where}) | {single:.1%} |")
        for key in keys if verbose else ():
            each = " ".join(f"{100 * repeat.groups[key]:+.1f}" for repeat in quiet)
            print(f"    {key[1]}-{key[2] - 1}: {own[key] / 1e6:.3f} ms, {errors[key]:+.1%}: {each}")


def print_stages(name: str, quiet: Sequence[Repeat], sizes: Sequence[int]) -> None:
    """Print the median error of every third of the model at the middle size."""
    keys = list(quiet[0].stages)
    cells = " ".join(f"{statistics.median(repeat.stages[key] for repeat in quiet):+.1%}" for key in keys)
    single = max(abs(error) for repeat in quiet for error in repeat.stages.values())
    print(f"| {name} | {keys[0][0]} | {sizes[0]} and {sizes[-1]} | {cells} | {single:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help=f"the beginning of one of {', '.join(SUBJECTS)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--attempts", type=int, default=15, help="repeats, dropped ones included")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of timing for the outer sizes")
    parser.add_argument("--verbose", action="store_true", help="every group")
    options = parser.parse_args()
    torch.manual_seed(0)
    name = next(known for known in SUBJECTS if known.startswith(options.model))
    subject = SUBJECTS[name]()
    recording = record(subject.model, (subject.inputs,))
    for parameter in subject.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    sizes = (len(subject.inputs) // 4, len(subject.inputs))
    groups = {size: groups_of(subject, recording, size) for size in sizes}
    quiet: list[Repeat] = []
    dropped = 0
    while len(quiet) < options.repeats and len(quiet) + dropped < options.attempts:
        repeat = one_repeat(subject, recording, groups, options.budget)
        if repeat.load > FOREIGN_LIMIT:
            dropped += 1
        else:
            quiet.append(repeat)
    if len(quiet) < options.repeats:
        print(f"{name} is not reported: {len(quiet)} quiet repeats, {dropped} dropped.")
        return
    print_sums(name, quiet, sizes)
    print_groups(name, quiet, sizes, verbose=options.verbose)
    print_stages(name, quiet, sizes)
    print(f"{len(quiet)} repeats, foreign load at most {max(one.load for one in quiet):.1%}, {dropped} dropped")


if __name__ == "__main__":
    main()
