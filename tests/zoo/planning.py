"""Bounds as the planner chooses them, from costs by size: parameters for time, values for messages."""

from autopipe.documents.graph import Graph
from autopipe.documents.profile import ProfiledValue, SharedParameter
from autopipe.errors import InfeasibleError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import Request, plan
from tests.profiles import cost, layer, profile
from tests.zoo.training import BATCH, MICRO_BATCHES

LINK = Link(latency_ns=1000, bytes_per_s=10**9)


def planned_bounds(graph: Graph, stages: int) -> tuple[int, ...] | None:
    """Return the bounds of the best plan for ``stages`` ranks; None where there are too few layers."""
    size = BATCH // MICRO_BATCHES
    held = {parameter.name: parameter.bytes for parameter in graph.parameters}
    layers = []
    for each in graph.layers:
        parameter_bytes = sum(held[name] for name in each.parameters)
        layers.append(
            layer(
                each.name, [cost(1000 + parameter_bytes, saved_bytes=1000)], parameter_bytes, parameters=each.parameters
            )
        )
    values = [
        ProfiledValue(
            name=value.name,
            producer=value.producer,
            consumers=value.consumers,
            requires_grad=value.requires_grad,
            bytes=(value.bytes,),
        )
        for value in graph.values
    ]
    shared = tuple(SharedParameter(name=name, layers=at, bytes=held[name]) for name, at in graph.tied().items())
    document = profile(
        layers,
        values,
        micro_batches=(size,),
        shared=shared,
        forbidden_cuts=tuple(cut.position for cut in graph.forbidden_cuts),
    )
    try:
        best = plan(
            document,
            Cluster.uniform(stages, intra_node=LINK),
            Request(batch_size=BATCH, micro_batch_size=size, stages=stages, schedule="1f1b"),
        )
    except InfeasibleError:
        return None
    return (0, *(stage.end for stage in best.stages))
