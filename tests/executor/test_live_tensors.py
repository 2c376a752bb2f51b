"""What ranks hold does not grow with the number of micro-batches, under every schedule but GPipe and BFS."""

import pytest
import torch
from torch import nn

from autopipe.schedules.comms import chain
from autopipe.schedules.named import NAMES, VIRTUAL, make
from tests.executor.pipes import thread_pipe

RANKS = 3
FLAT = [name for name in NAMES if name not in ("gpipe", "bfs", "forward")]


@pytest.mark.parametrize("name", FLAT)
def test_outputs_and_receive_buffers_are_flat_in_the_number_of_micro_batches(name: str) -> None:
    """Counted in the executor, and beside what torch.distributed.pipelining 2.13 holds of the same schedule.

    It keeps an output until its backward, and a buffer for every message of the step (docs/benchmarks/schedules).
    """
    virtual = 2 if name in VIRTUAL else 1
    stages, found = RANKS * virtual, []
    for micro_batches in (4 * RANKS, 6 * RANKS):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(stages)))
        x = torch.randn(micro_batches, 4)
        pipe = thread_pipe(
            model,
            (x,),
            stages=RANKS,
            micro_batches=micro_batches,
            virtual=virtual,
            schedule=name,
            loss_fn=nn.functional.mse_loss,
        )
        for _ in range(2):  # from the second step on, shapes are known and receives are posted early
            pipe.step(x, target=x)
        ranks = pipe.timeline().ranks
        pipe.close()
        schedule = make(name, stages=RANKS, micro_batches=micro_batches, virtual=virtual)
        for rank, row in enumerate(schedule.actions):
            home = schedule.stage_ranks
            remote = [edge for edge in chain(stages) if home[edge.source] != home[edge.target]]
            incoming = sum((home[edge.target] == rank) + (home[edge.source] == rank) for edge in remote)
            live = peak = 0
            for action in row:
                if action.stage < stages - 1:
                    live += {"F": 1, "I": -1, "B": -1, "W": 0}[action.op]
                    peak = max(peak, live)
            assert ranks[rank].peak_outputs <= peak
            assert ranks[rank].peak_receive_buffers < micro_batches * incoming
        found.append(tuple((r.peak_in_flight, r.peak_outputs, r.peak_receive_buffers) for r in ranks))
    assert found[0] == found[1]
