import pytest
import torch
from torch import nn
from torch.nn import functional

from autopipe.documents.graph import Graph
from autopipe.recorder import record
from tests.models import GPT, JOBS
from tests.recorder import awkward


def graph_of(model: nn.Module, *shape: int) -> Graph:
    return record(model, (torch.randn(shape),)).graph


def names(graph: Graph) -> list[str]:
    return [layer.name for layer in graph.layers]


def test_mlp_has_a_layer_per_linear_with_its_relu() -> None:
    graph = graph_of(JOBS["mlp"].build(), 2, 64)
    assert names(graph) == ["0", "2", "4", "6", "8", "10"]
    assert [layer.nodes for layer in graph.layers[1:3]] == [("_2", "_3"), ("_4", "_5")]


def test_gpt_is_cut_at_its_weights_and_norms_go_with_what_reads_them() -> None:
    graph = record(GPT(blocks=2), (torch.randint(0, 97, (2, 16)),)).graph
    block = ["qkv", "out", "up", "down"]
    assert names(graph) == [
        "tokens",
        "positions",
        *(f"blocks.{i}.{part}" for i in (0, 1) for part in block),
        "head",
    ]
    assert graph.layers[2].parameters[:2] == ("blocks.0.norm1.weight", "blocks.0.norm1.bias")


def test_residual_cnn_is_cut_between_its_convolutions() -> None:
    graph = graph_of(JOBS["cnn"].build(), 2, 3, 8, 8)
    assert names(graph)[:5] == ["stem", "blocks.0.conv1", "blocks.0.conv2", "blocks.1.conv1", "blocks.1.conv2"]
    skip = next(value for value in graph.values if value.producer == 0)
    assert skip.consumers == (1, 2)


def test_u_net_is_cut_between_its_convolutions_and_skips_cross() -> None:
    graph = graph_of(JOBS["unet"].build(), 2, 3, 16, 16)
    assert names(graph) == ["down1", "down2", "down3", "middle", "up3", "up2", "up1"]
    assert [(value.producer, value.consumers) for value in graph.values][:2] == [(0, (1, 6)), (1, (2, 5))]


def test_layer_that_is_a_whole_module_has_its_name() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(self.inner(x))

    graph = graph_of(nn.Sequential(Wrapped(), Wrapped()), 2, 4)
    assert [(layer.name, layer.kind) for layer in graph.layers] == [("0", "Wrapped"), ("1", "Wrapped")]


def test_layers_that_are_alike_but_for_their_weights_share_a_group() -> None:
    graph = record(GPT(blocks=3), (torch.randint(0, 97, (2, 16)),)).graph
    groups = {layer.name: layer.group for layer in graph.layers}
    assert groups["blocks.0.up"] == groups["blocks.1.up"] == groups["blocks.2.up"]
    assert groups["blocks.0.up"] != groups["blocks.0.down"]


@pytest.mark.parametrize("name", JOBS)
def test_every_node_is_in_one_layer_in_order(name: str) -> None:
    job = JOBS[name]
    graph = record(job.build(), (job.draw(2)[0],)).graph
    listed = [node for layer in graph.layers for node in layer.nodes]
    assert sorted(listed) == sorted(node.name for node in graph.nodes)
    order = [node.name for node in graph.nodes if node.op not in ("placeholder", "get_attr")]
    assert [node for node in listed if node in order] == order


@pytest.mark.parametrize("model", [awkward.WritesInPlace(), awkward.Regions(), awkward.WritesBuffer()])
def test_parameters_and_buffers_never_cross_and_every_value_goes_forward(model: nn.Module) -> None:
    graph = graph_of(model, 3, 4)
    attributes = {node.name for node in graph.nodes if node.op == "get_attr"}
    for value in graph.values:
        assert value.name not in attributes
        assert value.producer < value.consumers[0]


def test_no_cut_parts_an_in_place_write_from_what_reads_its_memory() -> None:
    graph = graph_of(awkward.WritesInPlace(), 3, 4)
    writes = next(i for i, layer in enumerate(graph.layers) if "set_item" in layer.nodes)
    assert "mul_" in graph.layers[writes].nodes
    assert "view" in graph.layers[writes].nodes


def test_no_cut_lies_inside_a_region() -> None:
    graph = graph_of(awkward.Regions(), 3, 4)
    for start, end in (("enter_grad_mode", "exit_grad_mode"), ("enter_autocast", "exit_autocast")):
        layers = [i for i, layer in enumerate(graph.layers) if start in layer.nodes or end in layer.nodes]
        assert len(layers) == 1
    assert "second" in graph.layers[layers[0]].nodes
    assert "third" in graph.layers[layers[0]].nodes


def test_layers_that_write_one_buffer_are_not_parted() -> None:
    graph = graph_of(awkward.CalledTwice(), 3, 4)
    assert names(graph) == ["linear", "linear@2", "last"]
    assert [cut.position for cut in graph.forbidden_cuts] == [1]
    assert "`norm." in graph.forbidden_cuts[0].reason


def test_functional_model_is_cut_at_its_products() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(nn.Parameter(torch.randn(4, 4)) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = functional.relu(x @ weight.t())
            return x

    assert names(graph_of(Functional(), 2, 4)) == ["matmul", "matmul@2", "matmul@3"]
