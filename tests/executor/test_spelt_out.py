"""A schedule that a plan spells out trains like the plain model, and so does the one fitted to a shorter batch."""

import copy

import pytest
import torch

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.errors import InputError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.comms import chain
from autopipe.simulator.fit import fit
from tests.models import JOBS
from tests.reference import differences, even_bounds, exempt, plain_step

STAGES = tuple(
    StageCost(forward_ns=f, backward_ns=i + w, input_grad_ns=i, weight_grad_ns=w)
    for f, i, w in ((100, 90, 30), (60, 100, 80), (120, 60, 60), (80, 120, 40))
)
EDGES = tuple(EdgeCost(edge=edge) for edge in chain(4))


def layout(layers: int, ranks: tuple[int, ...], **costs) -> Layout:
    planned = fit(STAGES, EDGES, ranks, 4)
    return Layout(
        bounds=even_bounds(layers, 4),
        stage_ranks=ranks,
        schedule="fitted",
        micro_batches=4,
        virtual_stages=4 // (max(ranks) + 1),
        actions=planned.lines,
        **costs,
    )


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1, 1, 0)])
def test_full_and_short_batches_train_like_the_plain_model(ranks):
    job = JOBS["gpt"]
    torch.manual_seed(0)
    model = job.build()
    plain = copy.deepcopy(model)
    recording = record(model, (job.draw(8)[0],))
    plan = layout(len(recording.graph.layers), ranks, stage_costs=STAGES, edge_costs=EDGES)
    pipe = Pipeline(recording.module, recording.graph, plan, loss_fn=job.loss, ranks=plan.ranks)
    for batch, micro_batches in ((8, 4), (3, 3), (8, 4)):
        x, y = job.draw(batch)
        loss = pipe.step(x, target=y)
        assert torch.equal(loss, plain_step(plain, job.loss, (x,), y, micro_batches))
        done = [[span.label for span in rank.spans if span.lane == "compute"] for rank in pipe.timeline().ranks]
        assert done == [line.split() for line in plan.training(micro_batches).lines]
    pipe.close()
    tied = exempt(recording.graph, plan.bounds, ranks)
    assert tied == {"tokens.weight"}
    assert differences(model, plain, tied) == []


def test_another_number_of_micro_batches_needs_the_times_of_the_stages():
    with pytest.raises(InputError, match="spelt out for 4 micro-batches"):
        layout(4, (0, 1, 2, 3)).training(3)
