from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autopipe.errors import InputError
from autopipe.recorder import record
from autopipe.recorder.granularity import by_parameters, largest_whole, numel
from autopipe.recorder.leaves import leaves_of
from tests.models import GPT
from tests.profiles import cost, layer, profile

IDS = torch.randint(0, 97, (2, 8))


def layers(granularity: int | None) -> list[str]:
    model = GPT(blocks=6)
    recording = record(model, (IDS,), granularity=granularity)
    ids = torch.randint(0, 97, (3, 8))
    assert torch.equal(recording.module(ids), model(ids))
    return [layer.name for layer in recording.graph.layers]


def test_blocks_stay_whole_where_that_many_layers_are_asked_for() -> None:
    names = layers(8)
    assert [name for name in names if name.startswith("blocks")] == [f"blocks.{number}" for number in range(6)]
    assert len(names) <= 9


def test_more_layers_open_the_blocks_and_none_asked_for_opens_all() -> None:
    few, more, all_of_them = (len(layers(granularity)) for granularity in (8, 20, None))
    assert few < more <= all_of_them
    assert len(layers(1000)) == all_of_them


def test_granularity_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="granularity is 0"):
        record(GPT(blocks=1), (IDS,), granularity=0)


def test_small_module_whose_arguments_a_graph_cannot_hold_is_entered() -> None:
    class Cache:
        """No structure that a graph could build."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, cache: Any) -> Tensor:
            return self.last(self.first(x)) if isinstance(cache, Cache) else x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x, Cache())
            return x

    recording = record(Model(), (torch.randn(2, 4),), granularity=2)
    assert recording.demoted == {}
    assert len(recording.graph.layers) == 4


sizes = st.recursive(st.integers(1, 9), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=12)


def build(shape: Any) -> nn.Module:
    return nn.Linear(shape, 1, bias=False) if isinstance(shape, int) else nn.Sequential(*map(build, shape))


@given(st.lists(sizes, min_size=1, max_size=4), st.integers(1, 15))
def test_no_other_size_gives_a_count_that_is_nearer(shape: list[Any], granularity: int) -> None:
    model = build(shape)
    leaves = leaves_of(model, (), None)

    def count(limit: int, module: nn.Module, path: str = "") -> int:
        if path and (leaves.is_leaf(module, path) or numel(module) <= limit):
            return 1
        return sum(count(limit, child, f"{path}.{name}") for name, child in module.named_children())

    chosen = largest_whole(
        model, granularity, weigh=by_parameters, is_leaf=leaves.is_leaf, is_open=lambda module: False
    )
    limits = range(max(numel(child) for child in model.children()) + 1)
    assert abs(count(chosen, model) - granularity) == min(abs(count(limit, model) - granularity) for limit in limits)


def pairs(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(count)))


def test_modules_that_a_profile_calls_costly_are_opened_first() -> None:
    model, x = pairs(3), torch.randn(2, 4)
    graph = record(model, (x,)).graph
    times = [10, 10, 10, 10, 900, 900]
    measured = profile(
        [
            layer(each.name, [cost(time)], parameters=each.parameters)  # type: ignore[arg-type]
            for each, time in zip(graph.layers, times, strict=True)
        ]
    )
    finer = record(model, (x,), granularity=4, profile=measured).graph
    assert [each.name for each in finer.layers] == ["0", "1", "2.0", "2.1"]


def test_opened_modules_are_entered_whatever_they_cost() -> None:
    graph = record(pairs(3), (torch.randn(2, 4),), granularity=3, opened=("1",)).graph
    assert [each.name for each in graph.layers] == ["0", "1.0", "1.1", "2"]
