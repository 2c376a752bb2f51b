"""A profile is planned in its recorded order, and in the order of the best stages on its graph, if that is faster."""

from bisect import bisect_right
from collections.abc import Callable

import msgspec
import numpy as np

from autopipe.costs.size import SizedProfile, at_size
from autopipe.documents.arguments import typed
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InfeasibleError
from autopipe.hardware.cluster import Cluster
from autopipe.planner.dag import Dag, Floats, Kind, Transfer, stage_loads
from autopipe.planner.deadline import Deadline
from autopipe.planner.reordering import blocks, must_precede, order_of_stages, reordered
from autopipe.planner.request import Request, with_profiled
from autopipe.planner.search import plan as plan_in_order
from autopipe.units import SECOND, format_time

SHARE_OF_TIME = 0.25
LEAST_GAIN = 1e-3


@typed
def plan(profile: Profile, cluster: Cluster, request: Request) -> Plan:
    """Return the plan of the shortest step, with the layers in the recorded order or in one that suits stages better.

    Stages of a graph with branches need not lie in a row in the recorded order: two towers, listed layer by layer,
    are best a stage each. The graph is cut into convex stages for the best linear plan's micro-batch size and number
    of stages; if that lowers the bottleneck, the layers are put in the order of these stages and planned again, and
    the faster of the two plans is returned. It carries the graph in its order, which is the order in which it runs.

    See `autopipe.planner.search.plan` for parameters and for what is raised.
    """
    deadline = Deadline.after(request.time_limit_s)
    first = plan_in_order(profile, cluster, request, deadline=deadline)
    share_s = SHARE_OF_TIME * deadline.left_s
    order = better_order(profile, with_profiled(cluster, profile), first, time_limit_s=share_s)
    if order is None or deadline.is_over:
        return first
    try:
        second = plan_in_order(reordered(profile, order), cluster, request, deadline=deadline)
    except InfeasibleError:
        return first
    if second.step_ns >= first.step_ns:
        return first
    sentence = (
        "The layers run in the order of the stages, not as they were recorded: in the recorded order the step would "
        f"take {format_time(first.step_ns)}."
    )
    return msgspec.structs.replace(
        second, profile_fingerprint=profile.fingerprint, binding=f"{second.binding} {sentence}"
    )


def better_order(profile: Profile, cluster: Cluster, known: Plan, *, time_limit_s: float) -> tuple[int, ...] | None:
    """Return an order in which stages of a lower bottleneck than ``known``'s lie in a row, None if there is none."""
    stages = len(known.stages)
    pieces = blocks(profile)
    if stages < 2 or stages > len(pieces) or time_limit_s <= 0 or _is_row(profile, pieces):
        return None
    # Planning of what can only run in one order needs no scipy.
    from autopipe.planner.dag_plan import plan_dag

    dag = graph_of(at_size(profile, known.micro_batch_size), cluster, stages=stages)
    try:
        found = plan_dag(dag, time_limit_s=time_limit_s)
    except InfeasibleError:
        return None
    order = tuple(layer for piece in order_of_stages(dag.edges, found.stage_of) for layer in pieces[piece])
    begins = [stage.begin for stage in known.stages]
    linear = stage_loads(dag, [bisect_right(begins, layers[0]) - 1 for layers in pieces])
    is_better = found.bottleneck_s < max(load.seconds for load in linear) * (1 - LEAST_GAIN)
    return order if is_better and order != tuple(range(len(order))) else None


def graph_of(sized: SizedProfile, cluster: Cluster, *, stages: int) -> Dag:
    """Return the layers between legal cuts as a graph, at one micro-batch size.

    A value takes the link's time once for each stage that reads it, and its gradient as much on the way back.
    """
    profile = sized.profile
    pieces = blocks(profile)
    piece_of = {layer: piece for piece, layers in enumerate(pieces) for layer in layers}

    def sums(figure: Callable[[int], int]) -> Floats:
        return np.array([sum(map(figure, layers)) for layers in pieces], dtype=np.float64)

    forward = sums(lambda layer: sized.costs[layer].forward_ns)
    backward = sums(lambda layer: sized.costs[layer].backward_ns)
    forward[-1] += sized.loss.forward_ns
    backward[-1] += sized.loss.backward_ns
    kind = Kind(
        seconds=(forward + backward) / SECOND,
        fixed_bytes=sums(lambda layer: _state_bytes(profile, layer)),
        in_flight_bytes=sums(lambda layer: sized.costs[layer].saved_bytes),
    )
    edges = {(piece_of[first], piece_of[second]) for first, second in must_precede(profile)}
    link = cluster.link(0, min(1, len(cluster.devices) - 1))
    transfers = []
    for value, size in zip(profile.values, sized.value_bytes, strict=True):
        source = piece_of[value.producer]
        targets = tuple(sorted({piece_of[consumer] for consumer in value.consumers} - {source}))
        seconds = (link.transfer_ns(size) - (link.latency_ns or 0)) / SECOND
        if targets and not value.is_rebuilt:
            both = 2 if value.requires_grad else 1
            transfers.append(Transfer(source=source, targets=targets, seconds=both * seconds, size_bytes=size))
    limits = [device.memory_bytes for device in cluster.devices]
    return Dag(
        name=profile.model,
        names=tuple(profile.layers[layers[0]].name for layers in pieces),
        plain=kind,
        recomputed=kind,
        can_recompute=np.zeros(len(pieces), dtype=bool),
        forward_s=forward / SECOND,
        edges=tuple(sorted((first, second) for first, second in edges if first != second)),
        transfers=tuple(transfers),
        devices=stages,
        memory_bytes=None if None in limits else float(min(limit for limit in limits if limit is not None)),
        stashes=True,
    )


def _is_row(profile: Profile, pieces: tuple[tuple[int, ...], ...]) -> bool:
    """Tell whether the layers can only run in the recorded order."""
    piece_of = {layer: piece for piece, layers in enumerate(pieces) for layer in layers}
    pairs = {(piece_of[first], piece_of[second]) for first, second in must_precede(profile)}
    return all((piece, piece + 1) in pairs for piece in range(len(pieces) - 1))


def _state_bytes(profile: Profile, layer: int) -> int:
    held = profile.layers[layer]
    return held.parameter_bytes + held.gradient_bytes + held.optimizer_bytes + held.buffer_bytes
