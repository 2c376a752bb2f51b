"""Plans for the page: a small one and one of 64 stages and 512 micro-batches."""

import msgspec

from autopipe.documents.graph import Graph, Layer, Value
from autopipe.documents.plan import Plan
from autopipe.hardware.cluster import Cluster
from autopipe.planner import evaluate
from tests.profiles import chain_profile

MS = 1_000_000


def plan_of(stages: int, micro_batches: int, *, name: str = "layer") -> Plan:
    """Return a plan of ``stages`` stages of two layers each, 2 to 3 ms forward, on devices of 8 GiB."""
    layers = 2 * stages
    profile = chain_profile([MS + (index % 2) * MS // 2 for index in range(layers)], crossing_bytes=4096)
    plan = evaluate(
        profile,
        Cluster.uniform(stages, memory_bytes=8 << 30),
        tuple(range(0, layers + 1, 2)),
        batch_size=micro_batches,
        micro_batch_size=1,
    )
    graph = Graph(
        model=plan.model,
        nodes=(),
        parameters=(),
        layers=tuple(Layer(name=f"{name}.{index}", kind="Linear", nodes=()) for index in range(layers)),
        values=tuple(
            Value(name=f"v{index}", producer=index, consumers=(index + 1,), shape=(1, 1024), bytes=4096)
            for index in range(layers - 1)
        ),
    )
    return msgspec.structs.replace(plan, graph=graph)
