import pytest
import torch
from torch import nn

from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.exporters.blocks import find_blocks
from autopipe.recorder import record
from tests.exporters.plans import at_blocks


def test_blocks_are_the_numbered_modules_that_most_layers_belong_to(gpt: Graph) -> None:
    blocks = find_blocks(gpt)
    assert (blocks.path, blocks.numbers) == ("blocks", (0, 1, 2, 3))
    assert blocks.held(0, len(gpt.layers)) == (
        "tokens",
        "positions",
        "blocks.0",
        "blocks.1",
        "blocks.2",
        "blocks.3",
        "norm",
        "head",
    )


def test_a_cut_between_blocks_tears_none(gpt: Graph) -> None:
    blocks = find_blocks(gpt)
    between = at_blocks(gpt, "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head")[1:-1]
    assert set(blocks.torn()) == set(range(2, len(gpt.layers))) - set(between)


def test_a_list_of_experts_inside_a_block_is_no_list_of_blocks() -> None:
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for expert in self.experts:
                x = x + expert(x)
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Expert() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    blocks = find_blocks(record(Model(), (torch.zeros(4, 4),)).graph)
    assert (blocks.path, blocks.numbers) == ("layers", (0, 1))


def test_a_sequential_model_is_its_own_list_of_blocks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    blocks = find_blocks(record(model, (torch.zeros(4, 4),)).graph)
    assert (blocks.path, blocks.numbers, blocks.name(2)) == ("", (0, 2), "2")


def test_a_model_without_blocks_is_refused_with_the_way_out(unet: Graph) -> None:
    with pytest.raises(InputError, match=r"no numbered list of blocks.*--to torch"):
        find_blocks(unet)
