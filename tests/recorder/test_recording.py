import copy
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.documents.files import decode, encode
from autopipe.documents.graph import Graph
from autopipe.errors import CaptureError, InputError
from autopipe.recorder import rebuild, record
from autopipe.recorder.glue import is_reader
from autopipe.stages.split import split
from tests.models import JOBS
from tests.recorder import awkward


def gradients(model: nn.Module, output: Any) -> list[Tensor]:
    loss = sum((part.float() ** 2).sum() for part in torch.utils._pytree.tree_leaves(output) if part.requires_grad)
    return list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))


@pytest.mark.parametrize("name", JOBS)
def test_recorded_model_computes_what_the_model_does_at_another_batch_size(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    recording = record(model, (job.draw(2)[0],))
    inputs = job.draw(5)[0]
    expected, found = model(inputs), recording.module(inputs)
    assert torch.equal(expected, found)
    assert all(map(torch.equal, gradients(model, expected), gradients(model, found)))
    assert recording.graph.batch_is_free


@pytest.mark.parametrize("name", JOBS)
def test_recorded_model_has_the_names_of_the_model_and_its_very_parameters(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    module = record(model, (job.draw(2)[0],)).module
    mine, theirs = (m.state_dict(keep_vars=True) for m in (module, model))
    assert set(mine) == set(theirs)
    assert all(mine[key] is theirs[key] for key in theirs)


@pytest.mark.parametrize("name", JOBS)
def test_document_round_trips_through_json_and_builds_the_same_module(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    recording = record(model, (job.draw(2)[0],))
    document = decode(encode(recording.graph), Graph)
    assert document == recording.graph
    assert document.fingerprint == recording.graph.fingerprint
    assert rebuild(model, document).code == recording.module.code


def test_tied_parameter_is_one_parameter_with_an_alias() -> None:
    job = JOBS["gpt"]
    graph = record(job.build(), (job.draw(2)[0],)).graph
    tied = [parameter for parameter in graph.parameters if parameter.aliases]
    assert [(parameter.name, parameter.aliases) for parameter in tied] == [("tokens.weight", ("head.weight",))]
    assert list(graph.tied()) == ["tokens.weight"]


def test_placeholders_have_the_names_of_the_forward_and_static_arguments_stay() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, *, scale: float = 1.0, extra: Tensor | None = None) -> Tensor:
            return self.linear(x) * scale if extra is None else self.linear(x) + extra

    module = record(Model(), (torch.randn(2, 4),), {"extra": None, "scale": 2.0}).module
    names = [node.target for node in module.graph.nodes if node.op == "placeholder"]
    assert names == ["x", "scale", "extra"]
    with pytest.raises(InputError, match="argument scale is 3"):
        module(torch.randn(2, 4), scale=3.0, extra=None)


def test_one_tensor_given_twice_stays_two_arguments() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.linear(a) * b

    model, x, y = Model(), torch.randn(2, 4), torch.randn(2, 4)
    module = record(model, (x, x)).module
    assert torch.equal(module(x, y), model(x, y))


class Both(NamedTuple):
    hidden: Tensor
    number: int


@dataclasses.dataclass
class Result:
    loss: Tensor
    both: Both | None = None


@pytest.mark.parametrize(
    "shape",
    [
        lambda h: (h, None, [h, 3]),
        lambda h: {"hidden": h, "nested": {"loss": h.sum()}},
        lambda h: Result(h.sum(), Both(h, 3)),
        lambda h: Both(h, 1),
    ],
    ids=["tuple", "dict", "dataclass", "named tuple"],
)
def test_output_has_the_structure_of_the_model_s(shape: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, batch: dict[str, Any]) -> Any:
            return shape(self.linear(batch["x"]) + batch["more"][0])

    model, batch = Model(), {"x": torch.randn(2, 4), "more": [torch.randn(2, 4)]}
    module = rebuild(model, record(model, (batch,)).graph)
    assert str(module(batch)) == str(model(batch))
    assert type(module(batch)) is type(model(batch))


@pytest.mark.parametrize(
    "middle",
    [
        awkward.ReadsValue,
        awkward.Counts,
        awkward.CallsLocalAutogradFunction,
        awkward.MapsOverSamples,
        awkward.MakesModules,
        awkward.Routes,
        awkward.MakesForget,
    ],
)
def test_module_that_cannot_be_written_down_becomes_a_leaf_and_says_why(middle: type[nn.Module]) -> None:
    model = awkward.Pair(middle())
    recording = record(model, (torch.randn(3, 4),))
    assert list(recording.demoted) == ["middle"]
    assert middle.__name__ in recording.demoted["middle"]
    assert "awkward.py:" in recording.demoted["middle"]
    assert [layer.name for layer in recording.graph.layers] == ["first", "middle", "last"]


@pytest.mark.parametrize("asked", [nn.Sequential, "blocks.1", "Resid*"])
def test_modules_asked_for_are_leaves(asked: type | str) -> None:
    job = JOBS["cnn"]
    module = record(job.build(), (job.draw(2)[0],), leaf=(asked,)).module
    called = [str(node.target) for node in module.graph.nodes if node.op == "call_module"]
    expected = {nn.Sequential: "blocks", "blocks.1": "blocks.1", "Resid*": "blocks.2"}[asked]
    assert expected in called


def test_value_read_at_the_root_is_refused_with_module_file_line_expression_and_ways_out() -> None:
    with pytest.raises(CaptureError) as refusal:
        record(awkward.ReadsValue(), (torch.randn(3, 4),))
    text = str(refusal.value)
    line = next(n for n, code in enumerate(Path(awkward.__file__).read_text().splitlines(), 1) if "x.sum() > 0" in code)
    for part in (
        "ReadsValue",
        f"awkward.py:{line}",
        "`x.sum() > 0`",
        "values to Python",
        "Change that line",
        "or move",
    ):
        assert part in text


def test_counter_at_the_root_is_refused_at_the_line_that_counts() -> None:
    with pytest.raises(CaptureError, match=r"`self.calls \+= 1`: it rebinds its attribute `calls`"):
        record(awkward.Counts(), (torch.randn(3, 4),))


def test_example_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        record(nn.Linear(4, 4), (torch.randn(2, 4), 1, 2))


def test_python_may_read_what_depends_on_no_input() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(x.shape[1])
            return self.linear(x) if bool((positions.diff() == 1).all()) else x

    assert record(Model(), (torch.randn(2, 4),)).demoted == {}


def test_reading_through_a_view_of_what_an_input_was_written_to_is_noticed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            total = torch.zeros(4)
            view = total[:1]
            total[0] = x.detach().sum()
            return self.linear(x) * (1 if bool(view > 0) else 2)

    with pytest.raises(CaptureError, match=r"bool\(view > 0\)"):
        record(Model(), (torch.randn(2, 4),))


def test_compiled_module_is_recorded_as_what_was_compiled() -> None:
    model = nn.Sequential(torch.compile(JOBS["mlp"].build()), nn.Linear(64, 64))
    layers = record(model, (torch.randn(2, 64),)).graph.layers
    assert [layer.name for layer in layers][:2] == ["0._orig_mod.0", "0._orig_mod.2"]


def test_hooks_of_open_modules_and_leaves_are_recorded() -> None:
    model = nn.Sequential(JOBS["mlp"].build(), nn.Linear(64, 64))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[0][2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = torch.randn(3, 64)
    assert torch.equal(record(model, (x,)).module(x), model(x))


def test_recorded_root_may_be_a_module_of_torch() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    recording = record(model, (torch.randn(2, 5, 8), torch.randn(2, 3, 8)))
    assert len(recording.graph.layers) >= 2


def test_constants_of_module_and_program_are_kept() -> None:
    table = torch.tensor([1.5, float("inf"), -2.0, 0.1])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.scale = torch.arange(4.0)

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(self.linear(x) * self.scale) / table

    model, x = Model(), torch.randn(2, 4)
    recording = record(model, (x,))
    assert torch.equal(rebuild(model, recording.graph)(x), model(x))
    assert set(recording.module.state_dict()) == set(model.state_dict())


def test_loss_that_a_leaf_leaves_on_an_attribute_is_read_back_after_it() -> None:
    model = awkward.AddsUp()
    recording = record(model, (torch.randn(2, 4),), leaf=(awkward.Leaves,))
    x = torch.randn(5, 4)
    for module in (recording.module, copy.deepcopy(recording.module), rebuild(model, recording.graph)):
        assert all(map(torch.equal, module(x), model(x)))
        assert set(module.state_dict()) == set(model.state_dict())
    layers = recording.graph.layers
    readers = [node for node in recording.module.graph.nodes if is_reader(node)]
    assert len(readers) == 3
    for reader in readers:
        assert any({reader.name, str(reader.args[0])} <= set(layer.nodes) for layer in layers)
    assert len(layers) == 4


def test_stages_read_back_what_their_own_leaves_have_left() -> None:
    model = awkward.AddsUp()
    recording = record(model, (torch.randn(2, 4),), leaf=(awkward.Leaves,))
    x = torch.randn(5, 4)
    values: dict[str, Any] = {}
    for stage in split(recording.module, recording.graph, range(len(recording.graph.layers) + 1)):
        made = stage.module(*(values[name] for name in stage.inputs) if stage.index else (x,))
        values.update(zip(stage.outputs, made, strict=True) if not stage.is_last else ())
    assert all(map(torch.equal, made, model(x)))


def test_attribute_that_is_set_before_each_call_of_a_leaf_is_set_in_the_recorded_model_too() -> None:
    model = awkward.Pair(awkward.MakesForget())
    module = record(model, (torch.randn(2, 4),)).module
    for batch in (3, 4):
        x = torch.randn(batch, 4)
        assert torch.equal(module(x), model(x))
        module(x).sum().backward()


def test_buffer_that_an_open_module_rebinds_is_written_back_and_its_earlier_values_stay_for_the_backward() -> None:
    class Follows(awkward.RebindsBuffer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * self.mean
            return y - super().forward(x)

    plain, model = Follows(), Follows()
    model.load_state_dict(plain.state_dict())
    buffer = model.mean
    recording = record(model, (torch.randn(2, 4),))
    assert recording.demoted == {}
    # Two forwards before the first backward, as a pipeline runs them.
    batches = torch.randn(2, 3, 4)
    for outputs in ([recording.module(x) for x in batches], [plain(x) for x in batches]):
        torch.stack(outputs).sum().backward()
    assert model.mean is buffer
    assert torch.equal(model.mean, plain.mean)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_attribute_that_is_set_to_what_it_was_stays() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.table = nn.Linear(4, 4), torch.randn(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.table = self.table.to(x.device, x.dtype)
            return self.linear(x) @ self.table.T

    model, x = Casts(), torch.randn(2, 4)
    table = model.table
    recording = record(nn.Sequential(model, nn.Linear(5, 5)), (x,))
    assert recording.demoted == {}
    assert model.table is table


def test_childless_module_that_is_given_a_module_is_entered() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(9))

        def forward(self, x: torch.Tensor, embedding: nn.Embedding) -> torch.Tensor:
            return x @ embedding.weight.T + self.bias

    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), Takes()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids), self.embed)

    model, ids = Gives(), torch.randint(0, 9, (3, 5))
    assert torch.equal(record(model, (ids[:2],)).module(ids), model(ids))


def test_module_that_makes_tensors_of_the_size_that_a_tensor_says_becomes_a_leaf() -> None:
    class Masks(nn.Module):
        def __init__(self, way: str) -> None:
            super().__init__()
            self.linear, self.way = nn.Linear(4, 4), way

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = (x > 0).sum()
            made = torch.arange(count) if self.way == "arange" else x.flatten()[:count]
            return self.linear(x) + made.shape[0]

    for way in ("arange", "slice"):
        model, x = awkward.Pair(Masks(way)), torch.randn(2, 4)
        recording = record(model, (x,))
        assert list(recording.demoted) == ["middle"]
        x = torch.randn(5, 4)
        assert torch.equal(recording.module(x), model(x))


def test_number_of_items_in_an_argument_is_checked() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
            return self.linear(torch.stack(images))

    module = record(Adds(), ([torch.randn(4), torch.randn(4)],)).module
    with pytest.raises(InputError, match="number of items of argument images is 3"):
        module([torch.randn(4)] * 3)
