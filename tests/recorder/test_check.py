import pytest
import torch
from torch import fx, nn

from autopipe.errors import CaptureError
from autopipe.recorder import record
from autopipe.recorder.check import find_difference
from autopipe.recorder.example import bind
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.settling import Terms, terms_of
from tests.models import CNN, JOBS
from tests.recorder import awkward


def checked(model: nn.Module, module: fx.GraphModule, x: torch.Tensor) -> str:
    module.recompile()
    difference = find_difference(module, terms(model, x))
    return "" if difference is None else difference.sentence


def terms(model: nn.Module, x: torch.Tensor) -> Terms:
    return terms_of(model, bind(model, (x,), {}), Leaves())


@pytest.mark.parametrize("name", JOBS)
def test_right_graph_is_equal(name: str) -> None:
    job = JOBS[name]
    model, x = job.build(), job.draw(2)[0]
    assert checked(model, record(model, (x,), check=False).module, x) == ""


def test_wrong_output_is_found_and_the_first_node_named() -> None:
    model, x = CNN(), torch.randn(2, 3, 8, 8)
    module = record(model, (x,)).module
    node = next(node for node in module.graph.nodes if node.name == "add_1")
    node.args = node.args[::-1][:1] * 2
    assert "the first node that differs is add_1 (call_method of add)" in checked(model, module, x)


def test_wrong_gradient_is_found() -> None:
    model, x = awkward.Pair(nn.Linear(4, 4)), torch.randn(2, 4)
    module = record(model, (x,)).module
    node = next(node for node in module.graph.nodes if node.name == "middle")
    with module.graph.inserting_before(node):
        node.replace_input_with(node.args[0], module.graph.call_method("detach", (node.args[0],)))
    assert "the gradient of first.weight differs" in checked(model, module, x)


def test_wrong_buffer_is_found() -> None:
    model, x = awkward.Pair(awkward.WritesBuffer()), torch.randn(2, 4)
    module = record(model, (x,)).module
    *_, last = (node for node in module.graph.nodes if node.op == "get_attr")
    with module.graph.inserting_after(last):
        copy = module.graph.call_method("clone", (last,))
    output = next(node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(output):
        module.graph.call_method("add_", (last, 1.0))
    for user in list(last.users):
        if user.target not in ("clone", "add_"):
            user.replace_input_with(last, copy)
    assert "buffer middle.mean differs" in checked(model, module, x)


def test_burned_in_batch_size_is_found() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).view(x.shape[0], 2, 2)

    model, x = Flat(), torch.randn(2, 4)
    module = record(model, (x,)).module
    view = next(node for node in module.graph.nodes if node.target == "view")
    view.args = (view.args[0], 2, 2, 2)
    module.recompile()
    difference = find_difference(module, terms(model, x))
    assert difference is not None
    assert difference.is_of_batch
    assert "fails with RuntimeError" in difference.sentence


def test_burned_in_mode_is_found() -> None:
    model, x = awkward.DropsOut(), torch.randn(8, 4)
    module = record(model, (x,)).module
    choose = next(node for node in module.graph.nodes if node.name == "choose")
    for user in list(choose.users):
        user.kwargs = {**user.kwargs, "training": True}
        user.args = tuple(True if argument is choose else argument for argument in user.args)
    assert "in evaluation mode" in checked(model, module, x)


def test_random_operation_out_of_order_is_found() -> None:
    model = nn.Sequential(awkward.DropsOut(), nn.Dropout(0.5))
    x = torch.randn(64, 4)
    module = record(model, (x,)).module
    extra = module.graph.call_function(torch.rand, (3,))
    next(iter(module.graph.nodes)).append(extra)
    assert "differs" in checked(model, module, x)


def test_model_that_cannot_be_trained_on_its_example_is_not_passed_unchecked() -> None:
    class NoBackward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).exp()
            z = y.exp()
            y.mul_(3)
            return z

    with pytest.raises(CaptureError, match="fails when it is run forward and backward"):
        record(NoBackward(), (torch.randn(2, 4),))


def test_recording_under_no_grad_still_knows_what_needs_a_gradient() -> None:
    job = JOBS["mlp"]
    with torch.no_grad():
        graph = record(job.build(), (job.draw(2)[0],)).graph
    assert all(value.requires_grad for value in graph.values)
