"""Compare plans of the public graphs with what other systems' rules make of them: bottleneck and simulated step."""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from autopipe.documents.profile import Cost, Profile, ProfiledLayer, ProfiledValue, Source
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import Request, evaluate, plan
from autopipe.planner.dag import Dag, stage_loads
from autopipe.planner.dag_plan import plan_dag
from autopipe.planner.imported import read_graph
from autopipe.planner.rules import block_partition, equal_count, least_bottleneck
from autopipe.units import SECOND

SIZES = (2, 4, 8)
MICRO_BATCHES_A_STAGE = 4
BASELINES = ("DeepSpeed, time", "DeepSpeed, parameters", "torchgpipe, time", "equal count")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="plan-bench/1 graphs")
    parser.add_argument("--only", default="*", help="a pattern of names")
    options = parser.parse_args()
    print(f"| graph | p | ours ms | gap | {' | '.join(f'{name}: bottleneck, step' for name in BASELINES)} |")
    print("|---" * (4 + len(BASELINES)) + "|")
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in BASELINES}
    for path in distinct(sorted(options.folder.glob(f"{options.only}.json"))):
        for size in SIZES:
            compare(path, size, ratios)
    for name, pairs in ratios.items():
        for what, column in (("bottleneck", 0), ("simulated step", 1)):
            values = [pair[column] for pair in pairs]
            print(
                f"{name}, {what}: mean {statistics.mean(values):.3f}, worst {max(values):.3f}, "
                f"best {min(values):.4f}, {len(values)} rows"
            )


def distinct(paths: list[Path]) -> list[Path]:
    """Return one file of each graph: some differ only in devices or in the memory cap, which no rule looks at."""
    found: dict[str, Path] = {}
    for path in paths:
        graph = json.loads(path.read_text())
        found.setdefault(json.dumps([graph["nodes"], graph["edges"], graph["transfers"]]), path)
    return list(found.values())


def compare(path: Path, size: int, ratios: dict[str, list[tuple[float, float]]]) -> None:
    graph = json.loads(path.read_text())
    dag = replace(read_graph(path, "bench", devices=size), memory_bytes=None)
    found = plan_dag(dag, time_limit_s=60)
    rows = [graph["nodes"][node] for node in dag.order]
    parameters = [row.get("param_bytes") or row["memory_fixed_bytes"] for row in rows]
    times = [row["total_s"] for row in rows]
    splits = {
        "DeepSpeed, time": least_bottleneck(times, size),
        "DeepSpeed, parameters": least_bottleneck(parameters, size) if any(parameters) else None,
        "torchgpipe, time": block_partition(times, size),
        "equal count": equal_count(times, size),
    }
    profile = profile_of(dag)
    cluster = Cluster.uniform(size, intra_node=Link(bytes_per_s=int(graph["bandwidth_bytes_per_s"])))
    work = {"batch_size": MICRO_BATCHES_A_STAGE * size, "micro_batch_size": 1, "schedule": "1f1b"}
    step_ns = plan(profile, cluster, Request(stages=size, replicas=1, time_limit_s=60.0, **work)).step_ns
    cells = []
    for name, bounds in splits.items():
        if bounds is None:
            cells.append("no parameters")
            continue
        stage_of = [0] * dag.nodes
        for position, node in enumerate(dag.order):
            stage_of[node] = sum(position >= bound for bound in bounds[1:-1])
        bottleneck = max(load.seconds for load in stage_loads(dag, stage_of))
        step = evaluate(profile, cluster, bounds, **work).step_ns
        ratios[name].append((bottleneck / found.bottleneck_s, step / step_ns))
        cells.append("{:.4f}, {:.4f}".format(*ratios[name][-1]))
    print(
        f"| {path.stem} | {size} | {1e3 * found.bottleneck_s:.4f} | {found.gap:.1e} | {' | '.join(cells)} |", flush=True
    )


def profile_of(dag: Dag) -> Profile:
    """Return the graph's nodes as layers in their topological order, with what each hands on."""
    place = {node: position for position, node in enumerate(dag.order)}
    layers = []
    for node in dag.order:
        forward_ns = round(dag.forward_s[node] * SECOND)
        cost = Cost(
            forward_ns=forward_ns,
            backward_ns=max(0, round(dag.plain.seconds[node] * SECOND) - forward_ns),
            saved_bytes=0,
            transient_bytes=0,
            source=Source.MEASURED,
        )
        held = ProfiledLayer(
            name=dag.names[node], parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0, buffer_bytes=0, costs=(cost,)
        )
        layers.append(held)
    return Profile(
        model=dag.name,
        device="published",
        torch="-",
        dtype="float32",
        optimizer="none",
        loss_name="none",
        clock="published",
        micro_batches=(1,),
        layers=tuple(layers),
        values=values_of(dag, place),
        loss=(Cost(forward_ns=0, backward_ns=0, saved_bytes=0, transient_bytes=0, source=Source.MEASURED),),
        graph_fingerprint=dag.name,
    )


def values_of(dag: Dag, place: dict[int, int]) -> tuple[ProfiledValue, ...]:
    """Return a value for every node that others follow, as large as what it sends on; gradients where any return."""
    readers: dict[int, set[int]] = {}
    for first, second in dag.edges:
        readers.setdefault(first, set()).add(second)
    sizes: dict[int, float] = {}
    back: set[int] = set()
    for transfer in dag.transfers:
        if all(place[transfer.source] < place[target] for target in transfer.targets):
            half = 0.5 if transfer.backward_share == 0.5 else 1.0
            sizes[transfer.source] = max(sizes.get(transfer.source, 0.0), half * transfer.size_bytes)
            if half == 0.5:
                back.add(transfer.source)
        else:
            back.update(transfer.targets)
    return tuple(
        ProfiledValue(
            name=f"v{node}",
            producer=place[node],
            consumers=tuple(sorted(place[reader] for reader in found)),
            requires_grad=node in back,
            bytes=(round(sizes.get(node, 0.0)),),
        )
        for node, found in sorted(readers.items(), key=lambda item: place[item[0]])
    )


if __name__ == "__main__":
    main()
