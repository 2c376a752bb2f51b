"""A method of the model itself that reads values is called whole where it has no weights of its own."""

import msgspec
import pytest
import torch
from torch import Tensor, nn

from autopipe.errors import CaptureError, MismatchError
from autopipe.recorder import rebuild, record
from autopipe.stages.split import split


class Detector(nn.Module):
    """Its loss is a method that looks at values, as those of torchvision's detectors are."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(()))

    def compute_loss(self, output: dict[str, Tensor], targets: list[Tensor]) -> dict[str, Tensor]:
        return {name: self._one(value, targets) for name, value in output.items()}

    def _one(self, value: Tensor, targets: list[Tensor]) -> Tensor:
        count = sum(int((target > 0).sum()) for target in targets)
        return value.sum() / max(1, count)

    def forward(self, x: Tensor, targets: list[Tensor]) -> dict[str, Tensor]:
        x = self.body(x).relu()
        losses = self.compute_loss({"first": self.head(x), "second": x}, targets)
        return {name: loss * 2 for name, loss in losses.items()}


class Weighted(Detector):
    """Its method uses a weight."""

    def _one(self, value: Tensor, targets: list[Tensor]) -> Tensor:
        return super()._one(value, targets) * self.weight


def draw() -> tuple[Tensor, list[Tensor]]:
    return torch.randn(2, 4), [torch.randn(3), torch.randn(5)]


def test_graph_calls_the_method_with_the_values_of_the_day() -> None:
    model = Detector()
    recording = record(model, draw())
    assert "compute_loss()" in recording.demoted
    again = rebuild(model, msgspec.json.decode(msgspec.json.encode(recording.graph), type=type(recording.graph)))
    for _ in range(3):
        x, targets = draw()
        expected = model(x, targets)
        assert all(torch.equal(value, expected[name]) for name, value in again(x, targets).items())


def test_stages_call_the_method_where_it_belongs() -> None:
    model = Detector()
    recording = record(model, draw())
    x, targets = draw()
    values: dict[str, object] = {}
    for stage in split(recording.module, recording.graph, range(len(recording.graph.layers) + 1)):
        made = stage.module(*(values[name] for name in stage.inputs) if stage.index else (x, targets))
        values.update(zip(stage.outputs, made, strict=True) if not stage.is_last else ())
    made["first"].backward()
    gradient = model.head.weight.grad
    model.zero_grad()
    model(x, targets)["first"].backward()
    assert gradient is not None
    assert torch.equal(gradient, model.head.weight.grad)


def test_recording_leaves_the_method_as_it_was() -> None:
    before = dict(vars(Weighted)), dict(vars(Detector))
    record(Detector(), draw())
    assert before == (dict(vars(Weighted)), dict(vars(Detector)))


def test_a_method_with_weights_is_refused_with_their_name() -> None:
    with pytest.raises(CaptureError, match="its method `compute_loss` reads values of tensors and uses `weight`"):
        record(Weighted(), draw())


@pytest.mark.parametrize("name", ["load_state_dict", "register_forward_hook", "__init__", "_one", "zero_grad"])
def test_a_document_names_no_method_that_the_forward_does_not(name: str) -> None:
    model = Detector()
    graph = record(model, draw()).graph
    nodes = tuple(
        msgspec.structs.replace(node, target=node.target.replace(".compute_loss", f".{name}")) for node in graph.nodes
    )
    with pytest.raises(MismatchError, match=name):
        rebuild(model, msgspec.structs.replace(graph, nodes=nodes))
