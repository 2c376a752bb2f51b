"""A price of memory gives a time that no bottleneck is under."""

from hypothesis import given, settings

from autopipe.planner.dag_contraction import uncontracted
from autopipe.planner.dag_recompute import faster_seconds
from autopipe.planner.memory_price import MemoryPrice
from tests.planner.graphs import dags, least_bottleneck

CLOSE = 1e-9


@given(dag=dags(most=6, memory=True, recompute=True))
@settings(max_examples=60, deadline=None)
def test_no_bottleneck_is_under_the_bound(dag):
    graph = uncontracted(dag, faster_seconds(dag))
    found = MemoryPrice.best(graph, min(dag.devices, dag.nodes))
    assert graph.seconds.sum() / len(found.allowance_s) <= found.bound_s * (1 + CLOSE)
    assert found.bound_s <= least_bottleneck(dag) * (1 + CLOSE)
