"""Plans of recorded models, cut where a test says."""

from itertools import pairwise

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Certificate, Plan, RankPlan, StagePlan


def planned(
    graph: Graph,
    bounds: tuple[int, ...],
    *,
    schedule: str = "1f1b",
    micro_batches: int = 4,
    micro_batch_size: int = 2,
    virtual_stages: int = 1,
    recompute: tuple[str, ...] = (),
) -> Plan:
    """Return a plan with stages at ``bounds``, stage s on rank s mod p, every stage 2 ms forward and 4 ms backward."""
    ranks = (len(bounds) - 1) // virtual_stages
    stages = tuple(
        StagePlan(
            begin=begin,
            end=end,
            rank=stage % ranks,
            layers=tuple(layer.name for layer in graph.layers[begin:end]),
            recompute=recompute if stage == 0 else (),
            forward_ns=2_000_000,
            backward_ns=4_000_000,
            optimizer_ns=1_000_000,
            parameter_bytes=0,
            state_bytes=0,
            activation_bytes=0,
        )
        for stage, (begin, end) in enumerate(pairwise(bounds))
    )
    return Plan(
        model=graph.model,
        graph_fingerprint=graph.fingerprint,
        profile_fingerprint="none",
        batch_size=micro_batches * micro_batch_size,
        micro_batch_size=micro_batch_size,
        micro_batches=micro_batches,
        pipeline_size=ranks,
        virtual_stages=virtual_stages,
        schedule=schedule,
        stages=stages,
        ranks=(RankPlan(peak_bytes=0, memory_limit_bytes=None, in_flight=1, busy_ns=0),) * ranks,
        step_ns=30_000_000,
        bubble_ratio=0.0,
        certificate=Certificate(
            status="heuristic",
            engine="given",
            objective_ns=0,
            objective_bound_ns=0,
            solver_gap=0.0,
            step_bound_ns=0,
            gap=0.0,
        ),
        binding="",
        graph=graph,
    )


def at_blocks(graph: Graph, *firsts: str) -> tuple[int, ...]:
    """Return the bounds of stages that begin at the layers called ``firsts`` (a prefix of their names each)."""
    names = [layer.name for layer in graph.layers]
    cuts = [
        next(i for i, name in enumerate(names) if name == first or name.startswith(f"{first}.")) for first in firsts
    ]
    return (0, *cuts, len(names))
