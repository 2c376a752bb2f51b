"""Closed sets are sorted so that a set never stands before one that it holds."""

import numpy as np
import pytest

from autopipe.planner.closed_sets import every_closed_set, sets_of_orders
from autopipe.planner.dag import Dag, Kind, Transfer
from autopipe.planner.dag_contraction import uncontracted


def row(seconds: np.ndarray) -> Dag:
    nodes = len(seconds)
    kind = Kind(seconds=seconds, fixed_bytes=np.zeros(nodes), in_flight_bytes=np.zeros(nodes))
    return Dag(
        name="row",
        names=tuple(str(node) for node in range(nodes)),
        plain=kind,
        recomputed=kind,
        can_recompute=np.zeros(nodes, dtype=bool),
        forward_s=seconds,
        edges=tuple((node, node + 1) for node in range(nodes - 1)),
        transfers=(Transfer(source=0, targets=(1,), seconds=1.0),),
        devices=3,
    )


@pytest.mark.parametrize("seed", range(40))
def test_nodes_without_time_do_not_upset_the_order_by_rounding(seed):
    rng = np.random.default_rng(seed)
    seconds = rng.random(int(rng.integers(20, 90)))
    seconds[rng.random(len(seconds)) < 0.4] = 0.0
    seconds[0] = 1.0
    closed = sets_of_orders(uncontracted(row(seconds), seconds), [range(len(seconds))])
    assert (np.diff(closed.members.sum(axis=1, dtype=np.int64)) == 1).all()
    assert closed.seconds[-1] == pytest.approx(seconds.sum(), rel=1e-12)


def test_a_row_has_one_closed_set_more_than_nodes_and_the_limit_counts_them():
    graph = uncontracted(row(np.ones(9)), np.ones(9))
    found = every_closed_set(graph, 10)
    assert found is not None
    assert found.size == 10
    assert every_closed_set(graph, 9) is None
