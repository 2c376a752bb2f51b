"""What a rank holds, every storage counted: as planned, for any number of micro-batches, and little between steps."""

import gc

import pytest
import torch
from torch import Tensor

import autopipe
from autopipe.cli.observed import counted_peak
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster
from autopipe.planner.evaluation import evaluate
from autopipe.profiler import measure
from autopipe.profiler.memory import StorageLedger
from tests.models import GPT, JOBS
from tests.processes import ProcessPool
from tests.reference import even_bounds

SIZE = 4
JOB = JOBS["gpt"]


@pytest.fixture(scope="module")
def profile() -> Profile:
    inputs, target = JOB.draw(SIZE)
    return measure(GPT(tied=False), (inputs,), target=target, loss_fn=JOB.loss, micro_batches=(SIZE,), budget_s=0)


def planned(profile: Profile, ranks: int, micro_batches: int, schedule: str = "1f1b") -> Plan:
    return evaluate(
        profile,
        Cluster.uniform(ranks),
        even_bounds(len(profile.layers), ranks),
        batch_size=SIZE * micro_batches,
        micro_batch_size=SIZE,
        schedule=schedule,
    )


def state_bytes(pipe: autopipe.Pipeline, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of parameters, gradients, optimizer state and buffers."""
    held: list[Tensor] = [buffer for module in pipe.modules() for buffer in module.buffers()]
    for parameter in pipe.parameters():
        held += [parameter] if parameter.grad is None else [parameter, parameter.grad]
        held += [value for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]
    return sum(tensor.untyped_storage().nbytes() for tensor in held)


def peaks(rank: int, plans: list[Plan]) -> list[tuple[int, int]]:
    """Return the counted peak of this rank under each plan, and its state."""
    found = []
    for plan in plans:
        pipe = autopipe.pipeline(GPT(tied=False), plan=plan, loss_fn=JOB.loss)
        optimizer = torch.optim.AdamW(pipe.parameters())
        inputs, target = JOB.draw(plan.batch_size)
        for _ in range(2):
            pipe.step(inputs, target=target)
            optimizer.step()
            optimizer.zero_grad()
        peak = counted_peak(pipe, optimizer, lambda p=pipe, x=inputs, y=target: p.step(x, target=y))
        found.append((peak, state_bytes(pipe, optimizer)))
        pipe.close()
    return found


def test_the_peak_is_the_plans_and_does_not_grow_with_micro_batches(processes: ProcessPool, profile: Profile) -> None:
    plans = [planned(profile, 4, micro_batches) for micro_batches in (4, 8, 16, 32)]
    counted = processes.run(peaks, 4, plans)
    for rank, row in enumerate(counted):
        found = [peak for peak, _ in row]
        # With as many micro-batches as ranks no receive is posted ahead; the last rank keeps each one's loss.
        assert found[0] <= found[1]
        assert found[3] - found[1] <= 4 * (32 - 8)
        assert found == pytest.approx([plan.ranks[rank].peak_bytes for plan in plans], rel=0.05)


def test_the_first_rank_holds_at_most_two_fifths_of_gpipes_activations(
    processes: ProcessPool, profile: Profile
) -> None:
    plans = [planned(profile, 2, 8, schedule) for schedule in ("1f1b", "gpipe")]
    ours, gpipe = (peak - state for peak, state in processes.run(peaks, 2, plans)[0])
    assert ours <= 0.4 * gpipe


def held_between(rank: int, plan: Plan) -> tuple[list[int], int]:
    """Return what this rank holds beyond its state after each of four steps, and the bytes of its widest message."""
    inputs, target = JOB.draw(plan.batch_size)
    with StorageLedger() as ledger:
        pipe = autopipe.pipeline(GPT(tied=False), plan=plan, loss_fn=JOB.loss)
        optimizer = torch.optim.AdamW(pipe.parameters())
        beyond = []
        for _ in range(4):
            pipe.step(inputs, target=target)
            optimizer.step()
            gc.collect()
            beyond.append(ledger.current_bytes - state_bytes(pipe, optimizer))
            optimizer.zero_grad()
    return beyond, max(edge.forward_bytes for edge in plan.edges)


def test_between_steps_a_rank_holds_its_state_and_at_most_the_receive_ring(
    processes: ProcessPool, profile: Profile
) -> None:
    for beyond, message in processes.run(held_between, 4, planned(profile, 4, 8)):
        assert beyond[-1] == beyond[0]
        assert 0 <= beyond[-1] <= message
