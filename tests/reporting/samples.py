"""A profile, a plan and a timeline small enough to check by hand, for the tests that draw them."""

from autopipe.documents.plan import Alternative, Certificate, Plan, RankPlan, StagePlan
from autopipe.documents.profile import Cost, Profile, ProfiledLayer, ProfiledValue, Source, Spread, WholeStep
from autopipe.documents.timeline import Lane, RankTimeline, Span, Timeline
from autopipe.schedules.action import Op
from autopipe.schedules.one_f_one_b import one_f_one_b
from autopipe.units import GIB, MIB, MILLISECOND

MS = MILLISECOND
FORWARD_MS = (1, 12, 12, 12, 9)


def cost(forward_ms: int, scale: int, saved_mib: int = 3, spread: bool = True) -> Cost:
    forward, backward = forward_ms * scale * MS, 2 * forward_ms * scale * MS
    return Cost(
        forward_ns=forward,
        backward_ns=backward,
        saved_bytes=saved_mib * scale * MIB,
        transient_bytes=scale * MIB,
        source=Source.MEASURED,
        forward_spread=Spread(mad_ns=forward // 100, minimum_ns=forward, rounds=10) if spread else None,
        backward_spread=Spread(mad_ns=backward // 50, minimum_ns=backward, rounds=10) if spread else None,
    )


def profile() -> Profile:
    names = ("tokens", "blocks.0", "blocks.1", "blocks.2", "head")
    layers = tuple(
        ProfiledLayer(
            name=name,
            parameter_bytes=(index + 1) * MIB,
            gradient_bytes=(index + 1) * MIB,
            optimizer_bytes=2 * (index + 1) * MIB,
            buffer_bytes=0,
            costs=(cost(FORWARD_MS[index], 1), cost(FORWARD_MS[index], 2)),
        )
        for index, name in enumerate(names)
    )
    values = tuple(
        ProfiledValue(
            name=f"v{index}", producer=index, consumers=(index + 1,), requires_grad=True, bytes=(MIB, 2 * MIB)
        )
        for index in range(4)
    )
    return Profile(
        model="GPT",
        device="cpu",
        device_memory_bytes=8 * GIB,
        torch="2.13.0",
        dtype="float32",
        optimizer="adamw",
        loss_name="cross_entropy",
        clock="thread time, 1 thread",
        foreign_load=0.25,
        micro_batches=(1, 2),
        layers=layers,
        values=values,
        loss=(cost(1, 1), cost(1, 2)),
        whole=(WholeStep(micro_batch=2, step_ns=290 * MS, layers_ns=282 * MS),),
        graph_fingerprint="0123456789abcdef",
    )


def stage(begin: int, end: int, rank: int, layers: tuple[str, ...], forward_ms: int, recompute: int = 0) -> StagePlan:
    return StagePlan(
        begin=begin,
        end=end,
        rank=rank,
        layers=layers,
        recompute=layers[:recompute],
        forward_ns=forward_ms * MS,
        backward_ns=2 * forward_ms * MS,
        optimizer_ns=4 * MS,
        send_bytes=MIB,
        parameter_bytes=6 * MIB,
        state_bytes=24 * MIB,
        activation_bytes=9 * MIB,
    )


def plan(status: str = "optimal") -> Plan:
    certificate = Certificate(
        status=status,
        engine="HiGHS",
        objective_ns=280 * MS,
        objective_bound_ns=280 * MS,
        solver_gap=0.0,
        step_bound_ns=297 * MS,
        gap=0.011,
    )
    alternatives = (
        Alternative(
            pipeline_size=1,
            micro_batch_size=2,
            micro_batches=4,
            schedule="1f1b",
            step_ns=None,
            reason="rank 0 needs 9.00 GiB of 8.00 GiB",
        ),
        Alternative(
            pipeline_size=2, micro_batch_size=1, micro_batches=8, schedule="1f1b", step_ns=410 * MS, reason="slower"
        ),
    )
    return Plan(
        model="GPT",
        graph_fingerprint="0123456789abcdef",
        profile_fingerprint="fedcba9876543210",
        batch_size=8,
        micro_batch_size=2,
        micro_batches=4,
        pipeline_size=2,
        schedule="1f1b",
        stages=(
            stage(0, 3, 0, ("tokens", "blocks.0", "blocks.1"), 25, recompute=1),
            stage(3, 5, 1, ("blocks.2", "head"), 22),
        ),
        ranks=(
            RankPlan(peak_bytes=44 * MIB, memory_limit_bytes=64 * MIB, in_flight=2, busy_ns=300 * MS),
            RankPlan(peak_bytes=33 * MIB, memory_limit_bytes=64 * MIB, in_flight=1, busy_ns=264 * MS),
        ),
        step_ns=375 * MS,
        bubble_ratio=0.2,
        certificate=certificate,
        binding="the time of stage 0 (75.00 ms a micro-batch)",
        alternatives=alternatives,
    )


def timeline(stages: int = 2, micro_batches: int = 4, source: str = "simulated") -> Timeline:
    """1F1B with forwards of 1 ms and backwards of 2 ms on every stage, free links."""
    schedule = one_f_one_b(stages, micro_batches)
    end: dict[tuple[Op, int, int], int] = {}
    spans: list[list[Span]] = [[] for _ in range(stages)]
    free = [0] * stages
    waiting = [list(row) for row in schedule.actions]
    while any(waiting):
        for rank, row in enumerate(waiting):
            if not row:
                continue
            action = row[0]
            forward = action.op is Op.FORWARD
            neighbour = rank - 1 if forward else rank + 1
            needs = (action.op, neighbour, action.micro_batch)
            if 0 <= neighbour < stages and needs not in end:
                continue
            start = max(free[rank], end.get(needs, 0))
            free[rank] = end[action.op, rank, action.micro_batch] = start + (1 if forward else 2) * MS
            spans[rank].append(Span(lane=Lane.COMPUTE, label=str(action), start_ns=start, end_ns=free[rank]))
            row.pop(0)
    ranks = tuple(
        RankTimeline(rank=rank, spans=tuple(row), peak_in_flight=stages - rank, peak_bytes=(40 - rank) * MIB)
        for rank, row in enumerate(spans)
    )
    return Timeline(source=source, schedule=schedule.name, micro_batches=micro_batches, step_ns=max(free), ranks=ranks)
