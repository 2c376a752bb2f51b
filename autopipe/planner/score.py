"""A split is scored by simulating it with its real stage times, and written down as a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from autopipe.costs.planned import planned_edges, planned_stages
from autopipe.costs.stages import EdgeCost, StageCost, edge_costs, stage_costs
from autopipe.documents.plan import Alternative, Certificate, EdgePlan, Plan, RankPlan, StagePlan
from autopipe.documents.timeline import Timeline
from autopipe.planner.problem import Problem
from autopipe.schedules.named import make
from autopipe.schedules.planned import planned_schedule
from autopipe.simulator.events import Run, run, simulate
from autopipe.simulator.metrics import bubble_ratio

PREFERENCE = ("1f1b", "gpipe")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A split of a problem with its simulated step."""

    problem: Problem
    bounds: tuple[int, ...]
    stages: tuple[StageCost, ...]
    edges: tuple[EdgeCost, ...]
    run: Run

    @property
    def step_ns(self) -> int:
        """The simulated step: all micro-batches, tied gradients, optimizer."""
        return self.run.step_ns

    @property
    def rank(self) -> tuple[int, int, int, int, tuple[int, ...]]:
        """What candidates are compared by: step, then schedule (1F1B holds less), peak memory, micro-batches, cuts."""
        order = PREFERENCE.index(self.problem.schedule) if self.problem.schedule in PREFERENCE else len(PREFERENCE)
        return self.step_ns, order, max(self.run.peak_bytes), self.problem.micro_batches, self.bounds


def score(problem: Problem, bounds: Sequence[int]) -> Candidate:
    """Return the split at ``bounds`` = (0, b1, ..., L) of ``problem`` with its simulated step."""
    bounds = tuple(bounds)
    ranks = tuple(range(problem.stages))
    stages = stage_costs(problem.intervals, problem.cluster, bounds, ranks)
    edges = edge_costs(problem.intervals.sized, problem.cluster, bounds, ranks)
    schedule = make(problem.schedule, stages=problem.stages, micro_batches=problem.micro_batches)
    result = run(schedule, stages, edges, with_spans=False)
    return Candidate(problem=problem, bounds=bounds, stages=stages, edges=edges, run=result)


def write_plan(
    candidate: Candidate,
    *,
    batch_size: int,
    certificate: Certificate,
    binding: str,
    alternatives: Sequence[Alternative] = (),
) -> Plan:
    """Return ``candidate`` as a plan."""
    problem, result = candidate.problem, candidate.run
    profile = problem.intervals.sized.profile
    link = problem.cluster.link(0, min(1, problem.stages - 1))
    return Plan(
        model=profile.model,
        graph_fingerprint=profile.graph_fingerprint,
        profile_fingerprint=profile.fingerprint,
        batch_size=batch_size,
        micro_batch_size=problem.micro_batch_size,
        micro_batches=problem.micro_batches,
        pipeline_size=problem.stages,
        schedule=problem.schedule,
        stages=tuple(_stage_plan(candidate, stage) for stage in range(problem.stages)),
        ranks=tuple(
            RankPlan(
                peak_bytes=result.peak_bytes[rank],
                memory_limit_bytes=problem.limits[rank],
                in_flight=result.peak_in_flight[rank],
                busy_ns=result.busy_ns[rank],
            )
            for rank in range(problem.stages)
        ),
        edges=tuple(_edge_plan(cost) for cost in candidate.edges),
        step_ns=result.step_ns,
        bubble_ratio=bubble_ratio(result.busy_ns, result.step_ns),
        certificate=certificate,
        binding=binding,
        alternatives=tuple(alternatives),
        link_latency_ns=link.latency_ns or 0,
        link_bytes_per_s=link.bytes_per_s,
        graph=profile.graph,
    )


def simulate_plan(plan: Plan) -> Timeline:
    """Return the predicted timeline of ``plan``, from the plan alone.

    Raises
    ------
    DocumentError
        If an edge of the plan leads backward or to a stage that is not there.
    """
    return simulate(planned_schedule(plan), planned_stages(plan), planned_edges(plan))


def _stage_plan(candidate: Candidate, stage: int) -> StagePlan:
    begin, end = candidate.bounds[stage], candidate.bounds[stage + 1]
    cost = candidate.stages[stage]
    layers = candidate.problem.intervals.sized.profile.layers[begin:end]
    return StagePlan(
        begin=begin,
        end=end,
        rank=stage,
        layers=tuple(layer.name for layer in layers),
        forward_ns=cost.forward_ns,
        backward_ns=cost.backward_ns,
        input_grad_ns=cost.input_grad_ns,
        weight_grad_ns=cost.weight_grad_ns,
        optimizer_ns=cost.optimizer_ns,
        tied_ns=cost.tied_ns,
        send_bytes=sum(edge.forward_bytes for edge in candidate.edges if edge.edge.source == stage),
        parameter_bytes=cost.parameter_bytes,
        state_bytes=cost.state_bytes,
        activation_bytes=cost.saved_bytes,
        working_bytes=cost.working_bytes,
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
