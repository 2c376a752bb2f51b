"""What one thing more would change: memory, a device, micro-batches, faster links, recompute, moved boundaries."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import msgspec

from autopipe.errors import AutopipeError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.bounds import frontier
from autopipe.planner.branch import Branch, Space
from autopipe.planner.cells import Cell, Tables
from autopipe.planner.deadline import Deadline
from autopipe.planner.kind import Kind
from autopipe.planner.levels import recomputable
from autopipe.planner.moves import fits, is_legal
from autopipe.planner.problem import Problem
from autopipe.planner.request import Request, most_stages
from autopipe.planner.score import Candidate, costed, recosted
from autopipe.planner.solved import by_shares, keeps
from autopipe.units import GIB, format_share, format_time

MOST_ENTRIES = 300_000
MOST_ACTIONS = 20_000
LEAST_CHANGE = 0.0005
PLACES = 2


def what_if(space: Space, best: Candidate, deadline: Deadline) -> tuple[str, ...]:
    """Return a sentence on each change of what was given, and on the best other place of each boundary.

    Each change is planned by the dynamic programme under the plan's own schedule and simulated. For large problems
    nothing is said: it would take as long as the search. Nor is anything after the deadline.
    """
    problem = best.problem
    if problem.stages * problem.layers**2 > MOST_ENTRIES or best.costed.size > MOST_ACTIONS or not best.step_ns:
        return ()
    said = chain(_changes(space, best), _boundaries(best))
    sentences = []
    while not deadline.is_over and (sentence := next(said, None)) is not None:
        sentences.append(sentence)
    return tuple(sentences)


def _changes(space: Space, best: Candidate) -> Iterator[str]:
    problem, request, cluster = best.problem, space.request, space.cluster
    if any(limit is not None for limit in problem.limits):
        more = tuple(
            msgspec.structs.replace(one, memory_bytes=one.memory_bytes and one.memory_bytes + GIB)
            for one in cluster.devices
        )
        found = _step(space, best, cluster=msgspec.structs.replace(cluster, devices=more))
        yield _sentence("One GiB more on each device", _no_longer(found, best), best.step_ns)
    yield _one_more_device(space, best)
    doubled = msgspec.structs.replace(request, batch_size=2 * request.batch_size)
    found = _step(space, best, request=doubled, micro_batches=2 * problem.micro_batches)
    yield _sentence("Twice the micro-batches", None if found is None else found // 2, best.step_ns, each="a sample")
    if len(cluster.devices) > 1 and cluster != (faster := _with_faster_links(cluster)):
        found = _step(space, best, cluster=faster)
        yield _sentence("Links of twice the speed", _no_longer(found, best), best.step_ns)
    if recomputable(problem.intervals.sized.costs) and request.recompute == "auto":
        other = "none" if best.costed.recompute else "all"
        found = _step(space, best, request=msgspec.structs.replace(request, recompute=other))
        what = "No recompute" if other == "none" else "Recompute of all layers"
        yield _sentence(what, found, best.step_ns)


def _no_longer(found: int | None, best: Candidate) -> int:
    """Return the step after a change that forbids nothing: at worst the plan itself is left."""
    return best.step_ns if found is None else min(found, best.step_ns)


def _one_more_device(space: Space, best: Candidate) -> str:
    """Say what a device like the last one would change, in the layout of ranks and replicas that is then the best."""
    problem, devices = best.problem, space.cluster.devices
    cluster = msgspec.structs.replace(space.cluster, devices=(*devices, devices[-1]))
    count = len(cluster.devices)
    found = [
        (step, ranks)
        for ranks in range(1, count + 1)
        if count % ranks == 0
        and space.request.replicas in (None, count // ranks)
        and space.request.batch_size % (count // ranks) == 0
        and (ranks > 1 or problem.kind.virtual == 1)
        and problem.kind.virtual * ranks <= most_stages(space.profile)
        and (step := _step(space, best, cluster=cluster, ranks=ranks, replicas=count // ranks)) is not None
    ]
    if not found:
        return f"One more device: no pipeline under this schedule uses {count}, or nothing that fits was found."
    step, ranks = min(found)
    layout = f"{ranks} rank{'s' if ranks > 1 else ''}"
    if ranks < count:
        layout += f" in {count // ranks} replicas"
    return _sentence(f"One more device, {layout}", step, best.step_ns)


def _step(
    space: Space,
    best: Candidate,
    *,
    cluster: Cluster | None = None,
    request: Request | None = None,
    ranks: int | None = None,
    replicas: int | None = None,
    micro_batches: int | None = None,
) -> int | None:
    """Return about the shortest step when something is otherwise, None if nothing fits then."""
    problem = best.problem
    request = request or space.request
    changed = replace(
        space, cluster=cluster or space.cluster, request=request, tables=Tables(space.profile, request), _last={}
    )
    count, copies = ranks or problem.ranks, replicas or problem.grid.replicas
    order = problem.grid.order if ranks is None else ()
    share = -(-request.batch_size // (copies * problem.micro_batch_size))
    cell = Cell(
        grid=DeviceGrid.of(changed.cluster, count, copies, order),
        micro_batch_size=problem.micro_batch_size,
        micro_batches=micro_batches or share,
        bound_ns=0,
    )
    try:
        other = changed.problem(Branch(cell=cell, kind=replace(problem.kind, depth=0), bound_ns=0))
    except AutopipeError:
        return None
    known = frontier(other)
    if known is None:
        return None
    splits = {known.best.bounds, known.fastest.bounds}
    if ranks is None and _allows(other, best.bounds):
        splits.add(best.bounds)
    found = [costed(other, bounds, kind=_kind(best)) for bounds in sorted(splits) if keeps(other, bounds)]
    if other.coupled:
        found += [costed(other, one.bounds, levels=one.levels, kind=_kind(best)) for one in by_shares(other, known)]
        if ranks is None and request.recompute == space.request.recompute:
            own = recosted(other, best.bounds, best.costed.recompute, _kind(best))
            found += [own] if fits(own) else []
    return min((one.estimate_ns() for one in found), default=None)


def _kind(best: Candidate) -> Kind:
    return best.problem.kind if best.actions else best.kind


def _allows(problem: Problem, bounds: tuple[int, ...]) -> bool:
    return all(problem.allowed[stage][bounds[stage], bounds[stage + 1]] for stage in range(problem.stages))


def _with_faster_links(cluster: Cluster) -> Cluster:
    def faster(link: Link) -> Link:
        return Link(
            latency_ns=link.latency_ns and link.latency_ns // 2, bytes_per_s=link.bytes_per_s and 2 * link.bytes_per_s
        )

    return msgspec.structs.replace(
        cluster, intra_node=faster(cluster.intra_node), inter_node=faster(cluster.inter_node)
    )


def _sentence(what: str, step_ns: int | None, now_ns: int, *, each: str = "") -> str:
    if step_ns is None:
        return f"{what}: nothing that fits was found."
    change = step_ns / now_ns - 1
    if abs(change) < LEAST_CHANGE:
        return f"{what}: no change."
    per = f" {each}" if each else ""
    return f"{what}: {format_share(abs(change))} {'longer' if change > 0 else 'shorter'}{per}."


def _boundaries(best: Candidate) -> Iterator[str]:
    """Yield, for each boundary, what the best other place for it costs, the others as they are."""
    costs, problem = best.costed, best.problem
    layers = problem.intervals.sized.profile.layers
    fixed = []
    for cut in range(1, problem.stages):
        found = min(_elsewhere(best, cut), default=None)
        if found is None:
            fixed.append(str(cut))
            continue
        step, place = found
        change = format_share(abs(step / best.step_ns - 1))
        yield (
            f"Boundary {cut} before {layers[costs.bounds[cut]].name}: before {layers[place].name} instead the step "
            f"takes {format_time(step)} ({'+' if step >= best.step_ns else '-'}{change})."
        )
    if fixed:
        yield f"Boundar{'ies' if len(fixed) > 1 else 'y'} {', '.join(fixed)}: no other place is legal and fits."


def _elsewhere(best: Candidate, cut: int) -> Iterator[tuple[int, int]]:
    """Yield about the step, and the place, of the few other places for a boundary that balance its two stages best."""
    costs, problem = best.costed, best.problem
    kind = _kind(best)
    low, place, high = costs.bounds[cut - 1 : cut + 2]

    def longest(other: int) -> tuple[int, int]:
        spans = ((cut - 1, low, other), (cut, other, high))
        return max(int(problem.pace_ns[s][i, j] + problem.hop_ns[s][i, j]) for s, i, j in spans), other

    yielded = 0
    for other in sorted((other for other in range(low + 1, high) if other != place), key=longest):
        bounds = (*costs.bounds[:cut], other, *costs.bounds[cut + 1 :])
        if not is_legal(problem, bounds):
            continue
        moved = recosted(problem, bounds, costs.recompute, kind)
        if fits(moved):
            yield moved.estimate_ns(), other
            yielded += 1
        if yielded == PLACES:
            return
