import pytest
import torch
from torch import Tensor, nn

from autopipe.documents.graph import Node
from autopipe.errors import CaptureError, DocumentError
from autopipe.recorder import rebuild, record
from autopipe.recorder.encode import decode_node
from autopipe.recorder.foreign import operator_name, resolve_operator
from tests.recorder import awkward


@torch.library.custom_op("autopipe_tests::scale", mutates_args=())
def scale(x: Tensor, factor: int) -> Tensor:
    return x * factor


scale.register_autograd(lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=lambda ctx, inputs, output: (
    setattr(ctx, "factor", inputs[1])
))  # fmt: skip


class CallsOperators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.aten.relu(self.first(x))
        x = torch.ops.aten.add.Tensor(x, x, alpha=2)
        return self.last(scale(x, 3))


@pytest.mark.parametrize("model", [awkward.CallsAutogradFunction(), awkward.Pair(awkward.CallsAutogradFunction())])
def test_custom_autograd_function_is_recorded_with_its_own_gradient(model: nn.Module) -> None:
    recording = record(model, (torch.randn(3, 4),))
    assert recording.demoted == {}
    x = torch.randn(5, 4)
    weight = next(model.parameters())
    expected, found = (
        torch.autograd.grad(module(x).sum(), weight)[0] for module in (model, rebuild(model, recording.graph))
    )
    assert torch.equal(expected, found)


def test_autograd_function_without_a_name_is_refused_at_the_root() -> None:
    with pytest.raises(CaptureError, match=r"the custom autograd function Local is local to a Python function"):
        record(awkward.CallsLocalAutogradFunction(), (torch.randn(3, 4),))


@pytest.mark.parametrize("name", ["os.system", "collections.OrderedDict", "tests.recorder.awkward.Pair", 3, None])
def test_only_autograd_functions_of_loaded_modules_are_applied(name: object) -> None:
    node = Node(
        name="apply",
        op="call_function",
        target="autopipe.recorder.glue.apply_function",
        arguments=[name, {"node": "x"}],
    )
    with pytest.raises(DocumentError, match="no custom autograd function"):
        decode_node(node, {"x": torch.fx.Graph().placeholder("x")})


def test_registered_operators_are_recorded() -> None:
    model = CallsOperators()
    recording = record(model, (torch.randn(3, 4),))
    assert recording.demoted == {}
    targets = [node.target for node in recording.graph.nodes if node.op == "call_function"]
    assert targets == ["torch.ops.aten.relu", "torch.ops.aten.add.Tensor", "torch.ops.autopipe_tests.scale.default"]
    x = torch.randn(5, 4)
    assert torch.equal(rebuild(model, recording.graph)(x), model(x))


@pytest.mark.parametrize(
    "name",
    ["torch.ops.load_library", "torch.ops.aten.from_file", "torch.ops.aten.absent", "torch.ops.aten.add._schema"],
)
def test_operators_that_open_files_and_other_attributes_have_no_name(name: str) -> None:
    assert resolve_operator(name) is None


def test_names_of_operators_lead_back_to_them() -> None:
    for operator in (torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.ops.aten.cat.default):
        name = operator_name(operator)
        assert name is not None
        assert resolve_operator(name) is operator
