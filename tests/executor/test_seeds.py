"""What a model draws at random is the same for any pipeline, and for a plain loop that seeds the same way."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.seeds import draw_seed
from autopipe.recorder import record
from autopipe.schedules.named import make
from tests.executor.pipes import thread_pipe, twins
from tests.models import Block, token_loss
from tests.processes import ProcessPool
from tests.reference import differences, even_bounds, plain_step

SEED = 7
BATCH = 8


class Noisy(nn.Module):
    """A GPT with dropout as modules, as functions, inside attention, and with noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(97, 32)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 97)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.tokens(ids))
        for block in self.blocks:
            x = functional.dropout(block(x), 0.1, self.training)
        if self.training:
            x = x + 0.01 * torch.randn_like(x)
        return self.head(self.norm(x))


def draw() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 97, (BATCH, 9))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def losses_and_gradients(
    stages: int, schedule: str, micro_batches: int, virtual: int = 1, recompute: bool = False, **where: Any
) -> list[Tensor]:
    """Return the losses of two steps, then the gradients of this process's parameters in the model's order."""
    torch.manual_seed(0)
    model = Noisy()
    recording = record(model, (draw()[0],))
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), stages * virtual),
        stage_ranks=make(schedule, stages=stages, micro_batches=1, virtual=virtual).stage_ranks,
        schedule=schedule,
        micro_batches=micro_batches,
        virtual_stages=virtual,
        recompute=tuple(layer.name for layer in recording.graph.layers) if recompute else (),
    )
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=token_loss, seed=SEED, **where)
    losses = [pipe.step(x, target=y) for x, y in (draw(), draw())]
    pipe.close()
    return losses + [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.fixture(scope="module")
def one_stage() -> list[Tensor]:
    return losses_and_gradients(1, "1f1b", 4, ranks=1)


@pytest.mark.case(14)
@pytest.mark.parametrize(
    ("stages", "schedule", "virtual"),
    [(2, "gpipe", 1), (2, "1f1b", 1), (4, "1f1b", 1), (2, "interleaved", 2), (2, "zb-v", 2)],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_masks_are_the_same_for_any_number_of_stages_and_schedule(
    one_stage: list[Tensor], stages: int, schedule: str, virtual: int, recompute: bool
) -> None:
    found = losses_and_gradients(stages, schedule, 4, virtual, recompute, ranks=stages)
    assert len(found) == len(one_stage)
    assert all(map(torch.equal, found, one_stage))


def losses_on_rank(rank: int) -> list[Tensor]:
    return losses_and_gradients(2, "1f1b", 4)[:2]


@pytest.mark.case(14)
def test_masks_over_processes_are_those_of_threads(processes: ProcessPool, one_stage: list[Tensor]) -> None:
    for losses in processes.run(losses_on_rank, 2):
        assert all(map(torch.equal, losses, one_stage))
    assert not torch.equal(one_stage[0], one_stage[1])


class Dropped(nn.Module):
    """Dropout as a module between each two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32, 2) for _ in range(3))
        self.drops = nn.ModuleList(nn.Dropout(0.1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block, drop in zip(self.blocks, self.drops, strict=True):
            x = drop(block(x))
        return x


@pytest.mark.case(14)
def test_a_plain_loop_that_seeds_each_node_draws_the_same() -> None:
    model, plain = twins(Dropped)
    x, y = torch.randn(2, BATCH, 5, 32)
    graph = record(model, (x,)).graph
    nodes = [name for layer in graph.layers for name in layer.draws]
    assert nodes == ["drops_0", "drops_1", "drops_2"]
    place = {"step": 0, "micro_batch": -1}
    plain.register_forward_pre_hook(lambda *_: place.update(micro_batch=place["micro_batch"] + 1))

    def sow(node: str) -> None:
        torch.manual_seed(draw_seed(SEED, place["step"], place["micro_batch"], node))

    for node, drop in zip(nodes, plain.drops, strict=True):
        drop.register_forward_pre_hook(lambda *_, node=node: sow(node))
    layers = len(graph.layers)
    pipe = thread_pipe(
        model, (x,), stages=3, micro_batches=4, loss_fn=functional.mse_loss, bounds=even_bounds(layers, 3), seed=SEED
    )
    for step in range(2):
        place.update(step=step, micro_batch=-1)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
    assert differences(model, plain, set()) == []
    pipe.close()


def test_a_step_leaves_the_random_state_outside_as_it_was() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    model, _ = twins(Noisy)
    x, y = draw()
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=2, loss_fn=token_loss)
    torch.manual_seed(3)
    first = torch.rand(1)
    pipe.step(x, target=y)
    assert torch.equal(torch.cat((first, torch.rand(1))), wanted)
    pipe.close()


def test_a_loss_that_draws_is_seeded_too() -> None:
    def noisy_loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(functional.dropout(output, 0.5), target)

    x, y = torch.randn(2, BATCH, 5, 32)
    losses = []
    for stages in (1, 3):
        model, _ = twins(Dropped)
        pipe = thread_pipe(model, (x,), stages=stages, micro_batches=4, loss_fn=noisy_loss, seed=SEED)
        losses.append([pipe.step(x, target=y), pipe.step(x, target=y)])
        pipe.close()
    assert all(map(torch.equal, *losses))
    assert not torch.equal(*losses[0])


def test_layers_without_random_operations_stay_as_they_are() -> None:
    model, _ = twins(Dropped)
    pipe = thread_pipe(model, (torch.randn(BATCH, 5, 32),), stages=2, micro_batches=2, loss_fn=functional.mse_loss)
    seeded = [name for stage in pipe.modules() for name, _ in stage.named_modules() if "seeded." in name]
    assert seeded == [f"autopipe_seeded.drops_{index}" for index in range(3)]
    assert copy.deepcopy(pipe.modules()[0]).state_dict().keys() == pipe.modules()[0].state_dict().keys()
    pipe.close()
