"""A cut of an imported graph as documents: a plan that can be simulated and reported, and an assignment to score."""

from collections.abc import Sequence
from typing import Any

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.files import fingerprint
from autopipe.documents.plan import Certificate, EdgePlan, Plan, RankPlan, StagePlan
from autopipe.planner.dag import Dag
from autopipe.planner.dag_plan import BOUNDED, DagPlan
from autopipe.schedules.comms import Edge
from autopipe.schedules.named import make
from autopipe.simulator.events import run
from autopipe.simulator.metrics import bubble_ratio
from autopipe.units import SECOND, format_share

SCHEDULE = "1f1b"


def assignment(plan: DagPlan, instance: str) -> dict[str, Any]:
    """Return which node is on which stage, and which nodes recompute, as plan-bench's scoring script reads it."""
    names = plan.dag.names
    return {
        "instance": instance,
        "assignment": dict(zip(names, plan.stage_of, strict=True)),
        "variant": {names[node]: "recompute" for node in sorted(plan.recompute)},
    }


def as_plan(plan: DagPlan, *, micro_batches: int) -> Plan:
    """Return the cut as a plan whose nodes stand in the order of its stages, with a step under 1F1B.

    The time of a stage holds the transfers that touch it, as the graph's own cost model has it; so links carry
    bytes and take no time of their own.
    """
    stages = _stages(plan)
    edges = _edges(plan)
    schedule = make(SCHEDULE, stages=len(stages), micro_batches=micro_batches)
    costs = [
        StageCost(forward_ns=stage.forward_ns, backward_ns=stage.backward_ns, state_bytes=stage.state_bytes)
        for stage in stages
    ]
    sent = [
        EdgeCost(
            edge=Edge(edge.source, edge.target, edge.gradient),
            forward_bytes=edge.forward_bytes,
            backward_bytes=edge.backward_bytes,
        )
        for edge in edges
    ]
    result = run(schedule, costs, sent, with_spans=False)
    limit = plan.dag.memory_bytes
    bottleneck_ns, bound_ns = (round(seconds * SECOND) for seconds in (plan.bottleneck_s, plan.bound_s))
    step_bound_ns = min(result.step_ns, micro_batches * bound_ns)
    return Plan(
        model=plan.dag.name,
        graph_fingerprint=fingerprint((plan.dag.names, plan.dag.edges)),
        profile_fingerprint=fingerprint(_figures(plan.dag)),
        batch_size=micro_batches,
        micro_batch_size=1,
        micro_batches=micro_batches,
        pipeline_size=len(stages),
        schedule=SCHEDULE,
        stages=stages,
        ranks=tuple(
            RankPlan(
                peak_bytes=round(load.memory_bytes),
                memory_limit_bytes=None if limit is None else int(limit),
                in_flight=result.peak_in_flight[rank],
                busy_ns=result.busy_ns[rank],
            )
            for rank, load in enumerate(plan.loads)
        ),
        edges=edges,
        step_ns=result.step_ns,
        bubble_ratio=bubble_ratio(result.busy_ns, result.step_ns),
        certificate=Certificate(
            status="optimal" if plan.is_optimal else "feasible",
            engine=plan.engine,
            objective_ns=bottleneck_ns,
            objective_bound_ns=bound_ns,
            solver_gap=max(0.0, 1 - plan.bound_s / plan.bottleneck_s) if plan.gap else 0.0,
            step_bound_ns=step_bound_ns,
            gap=(result.step_ns - step_bound_ns) / step_bound_ns if step_bound_ns else 0.0,
        ),
        binding=proof_sentence(plan),
    )


def proof_sentence(plan: DagPlan) -> str:
    """Return the bottleneck, what proves it, and which stage it is."""
    slowest = max(range(len(plan.loads)), key=lambda stage: plan.loads[stage].seconds)
    mean_s = sum(load.seconds for load in plan.loads) / len(plan.loads)
    load = plan.loads[slowest]
    share = load.transfer_s / load.seconds if load.seconds else 0.0
    above = load.seconds / mean_s - 1 if mean_s else 0.0
    how = "branch and bound over ranges of closed sets" if plan.engine == BOUNDED else "a search over all closed sets"
    proof = f"has a lower one (gap 0, by {how})"
    if not plan.is_optimal:
        proof = f"has one under {plan.bound_s * 1e3:.6g} ms (gap {plan.gap:.4%}, by {how})"
    devices = plan.dag.devices
    fewer = f" {len(plan.loads)} stages on {devices} devices are enough." if len(plan.loads) < devices else ""
    return (
        f"Bottleneck {load.seconds * 1e3:.6g} ms, stage {slowest}, {format_share(above)} above the mean, "
        f"{format_share(share)} of it transfers: no cut into convex stages "
        f"{proof}.{fewer}"
    )


def _stages(plan: DagPlan) -> tuple[StagePlan, ...]:
    dag = plan.dag
    moved: list[list[float]] = [[0.0, 0.0] for _ in plan.loads]
    for transfer in dag.transfers:
        touched = {plan.stage_of[node] for node in transfer.ends}
        for stage in touched if len(touched) > 1 else ():
            moved[stage][0] += transfer.seconds * (1 - transfer.backward_share)
            moved[stage][1] += transfer.seconds * transfer.backward_share
    held: list[list[int]] = [[] for _ in plan.loads]
    for node in dag.order:
        held[plan.stage_of[node]].append(node)
    stages, begin = [], 0
    for stage, nodes in enumerate(held):
        load = plan.loads[stage]
        kinds = [dag.recomputed if node in plan.recompute else dag.plain for node in nodes]
        forward = sum(float(dag.forward_s[node]) for node in nodes) + moved[stage][0]
        forward_ns = round(min(forward, load.seconds) * SECOND)
        fixed = sum(float(kind.fixed_bytes[node]) for kind, node in zip(kinds, nodes, strict=True))
        in_flight = sum(float(kind.in_flight_bytes[node]) for kind, node in zip(kinds, nodes, strict=True))
        stages.append(
            StagePlan(
                begin=begin,
                end=begin + len(nodes),
                rank=stage,
                layers=tuple(dag.names[node] for node in nodes),
                recompute=tuple(dag.names[node] for node in nodes if node in plan.recompute),
                forward_ns=forward_ns,
                backward_ns=round(load.seconds * SECOND) - forward_ns,
                send_bytes=0,
                parameter_bytes=0,
                state_bytes=round(fixed),
                activation_bytes=round(in_flight),
            )
        )
        begin += len(nodes)
    return tuple(stages)


def _edges(plan: DagPlan) -> tuple[EdgePlan, ...]:
    """Return what crosses between each pair of stages, forward and back."""
    crossing: dict[tuple[int, int], list[float]] = {}
    for transfer in plan.dag.transfers:
        source = plan.stage_of[transfer.source]
        for target in {plan.stage_of[node] for node in transfer.targets} - {source}:
            sizes = crossing.setdefault((min(source, target), max(source, target)), [0.0, 0.0])
            sizes[source > target] += transfer.size_bytes
    return tuple(
        EdgePlan(
            source=first,
            target=second,
            gradient=back > 0,
            forward_bytes=round(there),
            backward_bytes=round(back),
        )
        for (first, second), (there, back) in sorted(crossing.items())
    )


def _figures(dag: Dag) -> Sequence[Any]:
    kinds = [
        [kind.seconds.tolist(), kind.fixed_bytes.tolist(), kind.in_flight_bytes.tolist()]
        for kind in (dag.plain, dag.recomputed)
    ]
    moved = [(transfer.source, transfer.targets, transfer.seconds) for transfer in dag.transfers]
    return kinds, moved, dag.devices, dag.memory_bytes
