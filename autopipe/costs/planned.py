"""What a plan says of its stages and edges, read back as the costs that the simulator takes."""

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.plan import Plan
from autopipe.errors import DocumentError
from autopipe.hardware.cluster import Link
from autopipe.schedules.comms import Edge


def planned_stages(plan: Plan) -> tuple[StageCost, ...]:
    """Return the cost of every stage of ``plan``."""
    return tuple(
        StageCost(
            forward_ns=stage.forward_ns,
            backward_ns=stage.backward_ns,
            input_grad_ns=stage.input_grad_ns,
            weight_grad_ns=stage.weight_grad_ns,
            optimizer_ns=stage.optimizer_ns,
            tied_ns=stage.tied_ns,
            replica_ns=stage.replica_ns,
            parameter_bytes=stage.parameter_bytes,
            state_bytes=stage.state_bytes,
            saved_bytes=stage.activation_bytes,
            working_bytes=stage.working_bytes,
            forward_working_bytes=stage.forward_working_bytes,
        )
        for stage in plan.stages
    )


def planned_edges(plan: Plan) -> tuple[EdgeCost, ...]:
    """Return every edge of ``plan`` with what it carries.

    Raises
    ------
    DocumentError
        If an edge leads backward or to a stage that is not there.
    """
    for index, edge in enumerate(plan.edges):
        if not 0 <= edge.source < edge.target < len(plan.stages):
            raise DocumentError(
                f"edges[{index}] of the plan leads from stage {edge.source} to {edge.target}, and there are "
                f"{len(plan.stages)} stages: values only travel forward. Plan again."
            )
    return tuple(
        EdgeCost(
            edge=Edge(edge.source, edge.target, edge.gradient),
            forward_bytes=edge.forward_bytes,
            backward_bytes=edge.backward_bytes,
            unsaved_bytes=edge.unsaved_bytes,
            link=Link(latency_ns=edge.latency_ns, bytes_per_s=edge.bytes_per_s),
        )
        for edge in plan.edges
    )
