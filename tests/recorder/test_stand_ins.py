import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autopipe.documents.graph import Graph
from autopipe.recorder import rebuild, record
from autopipe.recorder.stand_ins import LARGEST_STAND_IN, stand_in
from tests.models import GPT, JOBS
from tests.recorder import awkward

MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "regions": (awkward.Regions, (3, 4)),
    "writes in place": (awkward.WritesInPlace, (3, 4)),
    "writes a buffer": (awkward.WritesBuffer, (3, 4)),
    "sizes": (awkward.Sizes, (3, 5, 4)),
    "drops out": (awkward.DropsOut, (3, 4)),
    "called twice": (awkward.CalledTwice, (3, 4)),
    "adds up": (awkward.AddsUp, (3, 4)),
    "autograd function": (awkward.CallsAutogradFunction, (3, 4)),
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        (5, 3, 8),
    ),
}


def with_and_without_memory(build: Callable[[], nn.Module], *args: Tensor) -> tuple[Graph, Graph]:
    with torch.device("meta"):
        model = build()
    return record(build(), args).graph, record(model, args).graph


@pytest.mark.parametrize("name", MODELS)
def test_graph_of_a_model_without_memory_is_that_of_the_model(name: str) -> None:
    build, shape = MODELS[name]
    real, found = with_and_without_memory(build, torch.randn(shape))
    assert msgspec.to_builtins(found) == msgspec.to_builtins(real)


@pytest.mark.parametrize("name", JOBS)
def test_graph_of_a_job_s_model_without_memory_is_that_of_the_model(name: str) -> None:
    real, found = with_and_without_memory(JOBS[name].build, JOBS[name].draw(2)[0])
    assert msgspec.to_builtins(found) == msgspec.to_builtins(real)


def test_graph_recorded_without_memory_runs_the_model_with_it() -> None:
    job = JOBS["gpt"]
    with torch.device("meta"):
        recording = record(job.build(), (job.draw(2)[0].to("meta"),))
    model = job.build()
    assert recording.unchecked is not None
    assert "has no memory" in recording.unchecked
    x = job.draw(3)[0]
    assert torch.equal(rebuild(model, recording.graph)(x), model(x))


def test_module_that_reads_values_is_whole_also_without_memory() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if bool(x.sum() == 0) else x

    with torch.device("meta"):
        model = awkward.Pair(Skips())
    assert list(record(model, (torch.randn(3, 4),)).demoted) == ["middle"]


@pytest.mark.parametrize("is_active", [True, False])
def test_graph_of_a_model_of_fake_tensors_is_that_of_the_model(is_active: bool) -> None:
    wanted = record(GPT(), (torch.zeros(2, 8, dtype=torch.long),)).graph
    with FakeTensorMode() as mode:
        model, ids = GPT(), torch.zeros(2, 8, dtype=torch.long)
    before = dict(model.named_parameters())
    with mode if is_active else contextlib.nullcontext():
        recording = record(model, (ids,))
    assert recording.graph == wanted
    assert "memory" in (recording.unchecked or "")
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert set(map(id, recording.module.parameters())) == set(map(id, before.values()))


def test_large_results_stay_without_memory_and_small_ones_do_not() -> None:
    large = torch.empty(LARGEST_STAND_IN + 1, device="meta")
    assert stand_in(large) is large
    assert stand_in(large[:4]).device.type == "cpu"
    assert stand_in(large.long()).device.type == "cpu"
    assert stand_in(torch.empty(3, device="meta", requires_grad=True)).requires_grad


def test_a_model_of_70_billion_parameters_is_recorded_in_seconds_without_its_memory() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    graph = record(model, (torch.zeros(2, 4096, dtype=torch.long),), granularity=80).graph
    assert sum(parameter.bytes for parameter in graph.parameters) > 140e9
    assert len(graph.layers) == 82
    assert all(layer.parameters for layer in graph.layers)
    hidden = [value for value in graph.values if value.shape == (2, 4096, 8192)]
    assert len(hidden) >= 80
    assert all(value.bytes == 2 * 4096 * 8192 * 2 and value.requires_grad for value in hidden)
    assert graph.batch_is_free


class Moves(nn.Module):
    """Moves a large result to where another lies, as GPT-2 of transformers does with its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(300, 300), nn.Linear(300, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return first + self.second(x).to(first.device)


def test_a_large_result_can_be_moved_to_where_it_seems_to_be() -> None:
    with torch.device("meta"):
        model, x = Moves(), torch.empty(300, 300)
    assert len(record(model, (x,)).graph.layers) == 2
