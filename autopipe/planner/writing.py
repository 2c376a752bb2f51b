"""A candidate is written down as a plan, and a plan is simulated from what it says."""

from collections.abc import Sequence

from autopipe.costs.planned import planned_edges, planned_stages
from autopipe.costs.stages import EdgeCost
from autopipe.documents.arguments import typed
from autopipe.documents.plan import Alternative, Certificate, EdgePlan, Plan, RankPlan, StagePlan
from autopipe.documents.timeline import Timeline
from autopipe.planner.score import Candidate
from autopipe.schedules.planned import planned_schedule
from autopipe.simulator.conditions import IDEAL
from autopipe.simulator.events import simulate
from autopipe.simulator.metrics import bubble_ratio


def write_plan(
    candidate: Candidate,
    *,
    batch_size: int,
    certificate: Certificate,
    binding: str,
    alternatives: Sequence[Alternative] = (),
    explanation: Sequence[str] = (),
) -> Plan:
    """Return ``candidate`` as a plan; ``batch_size`` is that of one replica."""
    problem, result = candidate.problem, candidate.run
    profile = problem.intervals.sized.profile
    link = problem.grid.link(0, min(1, problem.ranks - 1))
    return Plan(
        model=profile.model,
        graph_fingerprint=profile.graph_fingerprint,
        profile_fingerprint=profile.fingerprint,
        source=profile.source,
        batch_size=batch_size,
        micro_batch_size=problem.micro_batch_size,
        micro_batches=problem.micro_batches,
        pipeline_size=problem.ranks,
        data_parallel_size=problem.grid.replicas,
        device_order=problem.grid.order,
        virtual_stages=candidate.kind.virtual,
        schedule=candidate.kind.schedule,
        depth=candidate.kind.depth,
        actions=candidate.actions,
        stages=tuple(_stage_plan(candidate, stage) for stage in range(problem.stages)),
        ranks=tuple(
            RankPlan(
                peak_bytes=result.peak_bytes[rank],
                memory_limit_bytes=problem.limits[rank],
                in_flight=result.peak_in_flight[rank],
                busy_ns=result.busy_ns[rank],
            )
            for rank in range(problem.ranks)
        ),
        edges=tuple(_edge_plan(cost) for cost in candidate.edges),
        step_ns=result.step_ns,
        bubble_ratio=bubble_ratio(result.busy_ns, result.step_ns),
        certificate=certificate,
        binding=binding,
        explanation=tuple(explanation),
        alternatives=tuple(alternatives),
        link_latency_ns=link.latency_ns or 0,
        link_bytes_per_s=link.bytes_per_s,
        conditions=profile.conditions,
        graph=profile.graph,
    )


@typed
def simulate_plan(plan: Plan) -> Timeline:
    """Return the predicted timeline of ``plan``, from the plan alone, under the conditions that it holds.

    Raises
    ------
    DocumentError
        If an edge of the plan leads backward or to a stage that is not there.
    """
    conditions = plan.conditions or IDEAL
    return simulate(planned_schedule(plan), planned_stages(plan), planned_edges(plan), conditions=conditions)


def _stage_plan(candidate: Candidate, stage: int) -> StagePlan:
    begin, end = candidate.bounds[stage], candidate.bounds[stage + 1]
    cost = candidate.stages[stage]
    layers = candidate.problem.intervals.sized.profile.layers
    return StagePlan(
        begin=begin,
        end=end,
        rank=candidate.problem.stage_ranks[stage],
        layers=tuple(layer.name for layer in layers[begin:end]),
        recompute=tuple(layers[index].name for index in range(begin, end) if index in candidate.costed.recompute),
        forward_ns=cost.forward_ns,
        backward_ns=cost.backward_ns,
        input_grad_ns=cost.input_grad_ns,
        weight_grad_ns=cost.weight_grad_ns,
        optimizer_ns=cost.optimizer_ns,
        tied_ns=cost.tied_ns,
        replica_ns=cost.replica_ns,
        send_bytes=sum(edge.forward_bytes for edge in candidate.edges if edge.edge.source == stage),
        parameter_bytes=cost.parameter_bytes,
        state_bytes=cost.state_bytes,
        activation_bytes=cost.saved_bytes,
        working_bytes=cost.working_bytes,
        forward_working_bytes=cost.forward_working_bytes,
    )


def _edge_plan(cost: EdgeCost) -> EdgePlan:
    return EdgePlan(
        source=cost.edge.source,
        target=cost.edge.target,
        gradient=cost.edge.gradient,
        forward_bytes=cost.forward_bytes,
        backward_bytes=cost.backward_bytes,
        unsaved_bytes=cost.unsaved_bytes,
        latency_ns=cost.link.latency_ns,
        bytes_per_s=cost.link.bytes_per_s,
    )
