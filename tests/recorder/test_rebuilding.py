from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn

from autopipe.documents.graph import Graph, Node
from autopipe.errors import DocumentError, MismatchError
from autopipe.recorder import assemble, rebuild, record
from tests.models import CNN, GPT, JOBS
from tests.recorder import awkward


def recorded(model: nn.Module, *shape: int) -> Graph:
    return record(model, (torch.randn(shape),)).graph


def test_rebuilding_never_calls_forward() -> None:
    class Counted(CNN):
        calls: int = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return super().forward(x)

    model = Counted()
    graph = recorded(model, 2, 3, 8, 8)
    before = Counted.calls
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: pytest.fail("a forward was called"))
    rebuild(model, graph)
    assert Counted.calls == before


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: CNN(blocks=2), r"'blocks.2.conv1.weight' is in the graph and not in the model"),
        (lambda: CNN(blocks=4), r"'blocks.3.conv1.weight' is in the model and not in the graph"),
        (lambda: CNN(channels=16), r"'stem.weight' has shape \(8, 3, 3, 3\) in the graph and \(16, 3, 3, 3\)"),
        (lambda: CNN().double(), r"'stem.weight' has dtype float32 in the graph and float64"),
    ],
)
def test_graph_of_another_model_is_refused_with_the_first_difference(
    other: Callable[[], nn.Module], difference: str
) -> None:
    graph = recorded(CNN(), 2, 3, 8, 8)
    with pytest.raises(MismatchError, match=difference):
        rebuild(other(), graph)


def test_graph_of_a_tied_model_is_refused_for_an_untied_one() -> None:
    graph = record(GPT(blocks=1), (torch.randint(0, 97, (2, 16)),)).graph
    with pytest.raises(MismatchError, match=r"tokens.weight' has aliases \('head.weight',\)"):
        rebuild(GPT(blocks=1, tied=False), graph)


@pytest.mark.parametrize(
    "node",
    [
        Node(name="evil", op="get_attr", target="forward"),
        Node(name="evil", op="get_attr", target="__class__.__init__"),
        Node(name="evil", op="call_module", target="forward"),
        Node(name="evil", op="call_module", target='stem"), evil(), ("'),
        Node(name="evil", op="call_module", target="nowhere"),
        Node(name="evil(); x", op="call_module", target="stem"),
        Node(name="x", op="call_module", target="stem"),
    ],
)
def test_node_that_names_what_the_model_lacks_is_refused(node: Node) -> None:
    model = CNN()
    graph = recorded(model, 2, 3, 8, 8)
    damaged = msgspec.structs.replace(graph, nodes=(*graph.nodes[:1], node, *graph.nodes[1:]))
    with pytest.raises(DocumentError):
        rebuild(model, damaged)


def test_graph_without_its_end_is_refused() -> None:
    model = CNN()
    graph = recorded(model, 2, 3, 8, 8)
    with pytest.raises(DocumentError, match="does not end"):
        rebuild(model, msgspec.structs.replace(graph, nodes=graph.nodes[:-1]))


def test_buffer_left_out_of_the_state_dict_stays_out_and_the_model_s_is_written() -> None:
    model = awkward.WritesBuffer()
    module = record(model, (torch.randn(3, 4),)).module
    again = assemble(module.graph, module)
    for built in (module, again):
        assert set(built.state_dict()) == set(model.state_dict())
    before = model.mean.clone()
    again(torch.randn(3, 4))
    assert not torch.equal(before, model.mean)
    assert again.mean is model.mean


def test_reading_a_leaf_s_own_buffer_does_not_change_the_leaf() -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(4), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotary = Rotary()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.rotary(x)) + self.rotary.table

    model = Model()
    recording = record(model, (torch.randn(2, 4),))
    rebuild(model, recording.graph)
    assert model.rotary._non_persistent_buffers_set == {"table"}
    assert set(recording.module.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("name", JOBS)
def test_rebuilt_model_learns_the_model_s_parameters(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(3)
    module = rebuild(model, record(model, (inputs,)).graph)
    job.loss(module(inputs), target).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("target", ["autopipe_attributes.absent.extra", "autopipe_attributes.blocks.0.__class__"])
def test_graph_reads_no_attribute_of_a_module_that_is_not_there_and_no_special_one(target: str) -> None:
    model = awkward.AddsUp()
    graph = record(model, (torch.randn(2, 4),), leaf=(awkward.Leaves,)).graph
    nodes = tuple(
        msgspec.structs.replace(node, target=target) if node.target.startswith("autopipe_attributes") else node
        for node in graph.nodes
    )
    with pytest.raises(MismatchError, match="the graph reads 'autopipe_attributes"):
        rebuild(model, msgspec.structs.replace(graph, nodes=nodes))


def test_module_names_that_are_no_identifiers_are_kept() -> None:
    model = nn.Sequential()
    model.add_module("block1-0", nn.Linear(4, 4))
    model.add_module("block 2", nn.Linear(4, 4))
    x = torch.randn(2, 4)
    recording = record(model, (x,))
    assert torch.equal(rebuild(model, recording.graph)(x), model(x))


@pytest.mark.parametrize("name", ['a")+print("', "a\\", "a\nb"])
def test_a_name_that_could_become_code_is_refused(name: str) -> None:
    model = nn.Sequential()
    model.add_module("good", nn.Linear(4, 4))
    model.add_module(name, nn.Linear(4, 4))
    with pytest.raises(MismatchError):
        record(model, (torch.randn(2, 4),))
