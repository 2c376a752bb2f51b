"""The ``plan-bench/1`` form: a profiled graph in JSON, with times of transfers and recomputing variants."""

from collections.abc import Sequence

import msgspec
import numpy as np

from autopipe.errors import DocumentError
from autopipe.planner.dag import Dag, Floats, Kind, Transfer
from autopipe.planner.imported.figures import MOST_BYTES, MOST_SECONDS, column, device_count, distinct, figure

FORMAT = "plan-bench/1"
RECOMPUTE = "recompute"
BACKWARD_SHARE = {"fwd": 0.0, "bwd": 1.0, "both": 0.5}


class _Variant(msgspec.Struct, frozen=True):
    total_s: float
    memory_fixed_bytes: float = 0.0
    memory_per_inflight_bytes: float = 0.0


class _Node(msgspec.Struct, frozen=True):
    id: int | str
    total_s: float
    forward_s: float | None = None
    memory_fixed_bytes: float = 0.0
    memory_per_inflight_bytes: float = 0.0
    variants: dict[str, _Variant] = {}


class _Edge(msgspec.Struct, frozen=True):
    src: int | str
    dst: int | str


class _Transfer(msgspec.Struct, frozen=True):
    src: int | str
    dst: list[int | str]
    seconds: float
    bytes: float = 0.0
    dir: str | None = None


class _Objective(msgspec.Struct, frozen=True):
    combine: str = "sum"
    inflight: str = "none"


class _Graph(msgspec.Struct, frozen=True):
    format: str
    nodes: list[_Node]
    edges: list[_Edge]
    transfers: list[_Transfer]
    name: str = "graph"
    devices: int | None = None
    memory_cap_bytes: float | None = None
    objective: _Objective = _Objective()


def read_bench(
    content: bytes, *, origin: str, devices: int | None, memory_bytes: float | None, bytes_per_s: float
) -> Dag:
    """Return the graph in ``content``; its transfers have times, so ``bytes_per_s`` says nothing.

    Raises
    ------
    DocumentError
        If it is not of this form; the message names the path of the fault.
    """
    graph = _decoded(content, origin)
    index = distinct([str(node.id) for node in graph.nodes], f"{origin}: nodes")
    cap = graph.memory_cap_bytes
    if memory_bytes is None and cap is not None:
        memory_bytes = figure(cap, f"{origin}: memory_cap_bytes", MOST_BYTES)
    plain = _kind([(f"{origin}: nodes[{at}].", node) for at, node in enumerate(graph.nodes)])
    recomputed = _kind([_recomputed(f"{origin}: nodes[{at}].", node) for at, node in enumerate(graph.nodes)])
    forward = [node.total_s if node.forward_s is None else node.forward_s for node in graph.nodes]
    places = [f"{origin}: nodes[{at}].forward_s" for at in range(len(forward))]
    return Dag(
        name=graph.name,
        names=tuple(index),
        plain=plain,
        recomputed=recomputed,
        can_recompute=np.array([RECOMPUTE in node.variants for node in graph.nodes]),
        forward_s=np.minimum(column(zip(places, forward, strict=True), MOST_SECONDS), plain.seconds),
        edges=_edges(graph, index, origin),
        transfers=_transfers(graph, index, origin),
        devices=device_count(devices, graph.devices, origin),
        memory_bytes=memory_bytes,
        stashes=graph.objective.inflight != "none",
    )


def _decoded(content: bytes, origin: str) -> _Graph:
    try:
        graph = msgspec.json.decode(content, type=_Graph)
    except RecursionError:
        raise DocumentError(f"{origin}: nested too deeply to be a graph. Write it anew.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError(f"{origin} is no {FORMAT} graph: {error}. Mend the file, or name its --format.") from None
    if graph.format != FORMAT:
        raise DocumentError(f"{origin}: format is {graph.format!r}, and this reads {FORMAT!r}. Convert the file.")
    if graph.objective.combine != "sum":
        raise DocumentError(
            f"{origin}: objective.combine is {graph.objective.combine!r}; loads are known here as the 'sum' of "
            "computation and transfers. Convert the file."
        )
    if graph.objective.inflight not in ("none", "stages_to_end"):
        raise DocumentError(
            f"{origin}: objective.inflight is {graph.objective.inflight!r}; write 'none' or 'stages_to_end'."
        )
    for at, node in enumerate(graph.nodes):
        for variant in node.variants:
            if variant != RECOMPUTE:
                raise DocumentError(
                    f"{origin}: nodes[{at}].variants has {variant!r}, and only {RECOMPUTE!r} is known. Take it out."
                )
    return graph


def _recomputed(place: str, node: _Node) -> tuple[str, _Node | _Variant]:
    """Return the recomputing variant, or the node itself where it has none, with its place."""
    if RECOMPUTE in node.variants:
        return f"{place}variants.{RECOMPUTE}.", node.variants[RECOMPUTE]
    return place, node


def _kind(nodes: Sequence[tuple[str, _Node | _Variant]]) -> Kind:
    def figures(name: str, most: float) -> Floats:
        return column(((place + name, getattr(node, name)) for place, node in nodes), most)

    return Kind(
        seconds=figures("total_s", MOST_SECONDS),
        fixed_bytes=figures("memory_fixed_bytes", MOST_BYTES),
        in_flight_bytes=figures("memory_per_inflight_bytes", MOST_BYTES),
    )


def _edges(graph: _Graph, index: dict[str, int], origin: str) -> tuple[tuple[int, int], ...]:
    return tuple(
        (_node(edge.src, index, f"{origin}: edges[{at}].src"), _node(edge.dst, index, f"{origin}: edges[{at}].dst"))
        for at, edge in enumerate(graph.edges)
    )


def _transfers(graph: _Graph, index: dict[str, int], origin: str) -> tuple[Transfer, ...]:
    found = []
    for at, transfer in enumerate(graph.transfers):
        place = f"{origin}: transfers[{at}]"
        source = _node(transfer.src, index, f"{place}.src")
        targets = tuple(_node(name, index, f"{place}.dst[{to}]") for to, name in enumerate(transfer.dst))
        if transfer.dir is not None and transfer.dir not in BACKWARD_SHARE:
            raise DocumentError(f"{place}.dir is {transfer.dir!r}: write one of {', '.join(BACKWARD_SHARE)}.")
        found.append(
            Transfer(
                source=source,
                targets=targets,
                seconds=figure(transfer.seconds, f"{place}.seconds", MOST_SECONDS),
                size_bytes=figure(transfer.bytes, f"{place}.bytes", MOST_BYTES),
                backward_share=BACKWARD_SHARE[transfer.dir or "fwd"],
            )
        )
    return tuple(found)


def _node(name: int | str, index: dict[str, int], place: str) -> int:
    if str(name) not in index:
        raise DocumentError(f"{place} is {name!r}, and no node has that id. Mend it, or add the node.")
    return index[str(name)]
