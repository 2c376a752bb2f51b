"""Random and handmade graphs to cut, and an oracle that tries every cut into convex stages."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autopipe.planner.dag import Dag, Kind, Transfer

INFINITE = float("inf")


@st.composite
def dags(draw: st.DrawFn, *, most: int = 9, memory: bool = False, recompute: bool = False) -> Dag:
    """A graph of up to ``most`` nodes; times are whole milliseconds, so that sums are nearly exact."""
    nodes = draw(st.integers(1, most))
    pairs = [(first, second) for second in range(nodes) for first in range(second)]
    edges = [pair for pair in pairs if draw(st.integers(0, 3)) == 0]
    figures = st.integers(0, 9)
    plain = _kind(draw, nodes, figures, memory)
    again = _kind(draw, nodes, figures, memory) if recompute else plain
    can = np.array([recompute and draw(st.booleans()) for _ in range(nodes)])
    transfers = [
        Transfer(
            source=draw(st.integers(0, nodes - 1)),
            targets=tuple(draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=3))),
            seconds=draw(figures) * 1e-3,
        )
        for _ in range(draw(st.integers(0, 2 * nodes)))
    ]
    return Dag(
        name="random",
        names=tuple(f"n{node}" for node in range(nodes)),
        plain=plain,
        recomputed=Kind(
            seconds=np.where(can, again.seconds, plain.seconds),
            fixed_bytes=np.where(can, again.fixed_bytes, plain.fixed_bytes),
            in_flight_bytes=np.where(can, again.in_flight_bytes, plain.in_flight_bytes),
        ),
        can_recompute=can,
        forward_s=plain.seconds / 2,
        edges=tuple(edges),
        transfers=tuple(transfers),
        devices=draw(st.integers(1, 4)),
        memory_bytes=float(draw(st.integers(5, 60))) if memory else None,
        stashes=memory and draw(st.booleans()),
    )


def _kind(draw: st.DrawFn, nodes: int, figures: st.SearchStrategy[int], memory: bool) -> Kind:
    def column() -> np.ndarray:
        return np.array([float(draw(figures)) for _ in range(nodes)])

    none = np.zeros(nodes)
    seconds = column() * 1e-3
    seconds[0] += 1e-3
    return Kind(seconds=seconds, fixed_bytes=column() if memory else none, in_flight_bytes=column() if memory else none)


def least_bottleneck(dag: Dag, *, exactly: int | None = None) -> float:
    """Return the least bottleneck of all cuts into convex stages with all choices of recompute, by trying them."""
    everything = frozenset(range(dag.nodes))
    closed = _closed_sets(dag)

    @cache
    def least(held: frozenset[int], to_go: int) -> float:
        """What is not in ``held`` makes exactly ``to_go`` stages."""
        if to_go == 0:
            return 0.0 if held == everything else INFINITE
        return min(
            (max(_load(dag, larger - held, to_go), least(larger, to_go - 1)) for larger in closed if held < larger),
            default=INFINITE,
        )

    counts = range(1, dag.devices + 1) if exactly is None else (exactly,)
    return min(least(frozenset(), count) for count in counts)


def _closed_sets(dag: Dag) -> list[frozenset[int]]:
    sets = []
    for size in range(dag.nodes + 1):
        for nodes in combinations(range(dag.nodes), size):
            held = frozenset(nodes)
            if all(first in held for first, second in dag.edges if second in held):
                sets.append(held)
    return sets


def _load(dag: Dag, stage: frozenset[int], stages_to_end: int) -> float:
    in_flight = dag.in_flight(stages_to_end)
    moved = sum(move.seconds for move in dag.transfers if move.ends & stage and move.ends - stage)
    optional = [node for node in stage if dag.can_recompute[node]]
    best = INFINITE
    for count in range(len(optional) + 1):
        for chosen in combinations(optional, count):
            kinds = [(node, dag.recomputed if node in chosen else dag.plain) for node in stage]
            memory = sum(kind.fixed_bytes[node] + in_flight * kind.in_flight_bytes[node] for node, kind in kinds)
            if dag.memory_bytes is None or memory <= dag.memory_bytes:
                best = min(best, sum(float(kind.seconds[node]) for node, kind in kinds))
    return best + moved


def bench_json(
    times: Sequence[float],
    edges: Sequence[tuple[int, int]],
    *,
    devices: int = 2,
    transfer_s: float = 0.0,
    **fields: Any,
) -> dict[str, Any]:
    """A graph in the plan-bench/1 form, with one transfer from every node to all that follow it."""
    readers: dict[int, list[int]] = {}
    for first, second in edges:
        readers.setdefault(first, []).append(second)
    graph = {
        "format": "plan-bench/1",
        "name": "handmade",
        "devices": devices,
        "memory_cap_bytes": None,
        "objective": {"combine": "sum", "inflight": "none"},
        "nodes": [
            {"id": node, "forward_s": time / 3, "total_s": time, "memory_fixed_bytes": 0.0}
            for node, time in enumerate(times)
        ],
        "edges": [{"src": first, "dst": second, "bytes": 1.0} for first, second in edges],
        "transfers": [
            {"src": first, "dst": others, "seconds": transfer_s, "bytes": 1e3, "dir": "fwd"}
            for first, others in readers.items()
        ],
    }
    return {**graph, **fields}


def two_towers(length: int) -> dict[str, Any]:
    """One input, two towers of equal nodes that never meet before the last node; listed layer by layer.

    What the nodes of a tower hand on is four times as dear as its ends.
    """
    edges = [(0, 1), (0, 2)]
    edges += [(node, node + 2) for node in range(1, 2 * length - 1)]
    edges += [(2 * length - 1, 2 * length + 1), (2 * length, 2 * length + 1)]
    graph = bench_json([0.001] * (2 * length + 2), edges, transfer_s=0.002)
    for transfer in graph["transfers"]:
        if transfer["src"] == 0 or transfer["dst"] == [2 * length + 1]:
            transfer["seconds"] = 0.0005
    return graph


def mutations(graph: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield texts of ``graph`` with one fault each, and what the message must name."""

    def changed(path: tuple[Any, ...], value: Any) -> str:
        copy = json.loads(json.dumps(graph))
        place = copy
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(copy)

    def without(path: tuple[Any, ...]) -> str:
        copy = json.loads(json.dumps(graph))
        place = copy
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        return json.dumps(copy)

    yield changed(("nodes", 1, "total_s"), -0.5), "nodes[1].total_s"
    yield changed(("nodes", 1, "total_s"), 1e300), "nodes[1].total_s"
    yield changed(("nodes", 1, "total_s"), float("nan")), "malformed"
    yield changed(("nodes", 1, "total_s"), "fast"), "nodes[1].total_s"
    yield changed(("nodes", 1, "memory_fixed_bytes"), -1), "nodes[1].memory_fixed_bytes"
    yield changed(("nodes", 1, "id"), 0), "'0' comes twice"
    yield changed(("nodes", 1, "variants"), {"offload": {"total_s": 1.0}}), "offload"
    yield changed(("nodes", 1, "variants"), {"recompute": {"total_s": -1.0}}), "nodes[1].variants.recompute.total_s"
    yield changed(("nodes",), []), "no node"
    yield changed(("edges", 0, "src"), 99), "edges[0].src"
    yield changed(("edges", 0), {"src": 5, "dst": 0}), "cycle"
    yield changed(("edges", 0), {"src": 0, "dst": 0}), "cycle"
    yield changed(("transfers", 0, "dst", 0), 99), "transfers[0].dst[0]"
    yield changed(("transfers", 0, "seconds"), -1.0), "transfers[0].seconds"
    yield changed(("transfers", 0, "dir"), "up"), "transfers[0].dir"
    yield changed(("objective", "combine"), "max"), "objective.combine"
    yield changed(("objective", "inflight"), "all"), "objective.inflight"
    yield changed(("format",), "plan-bench/9"), "plan-bench/9"
    yield changed(("devices",), 0), "devices"
    yield changed(("memory_cap_bytes",), -4), "memory_cap_bytes"
    yield without(("nodes", 1, "total_s")), "total_s"
    yield without(("nodes",)), "nodes"
    yield "{", "plan-bench/1"
    yield "[" * 100_000, "no plan-bench/1"
    yield "", "plan-bench/1"
