import torch
from torch import Tensor, nn

from autopipe.recorder import record
from autopipe.stages.split import split


class Keeps(nn.Module):
    """A leaf with a buffer that its state_dict leaves out, read from outside too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.shift = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * self.scale + self.shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.keeps = Keeps()
        self.last = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.plain = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.keeps(self.first(x) + self.table) + self.keeps.scale
        return self.last(x * self.plain + self.keeps.shift)


def test_union_of_the_stages_state_is_the_model_s_and_the_model_is_untouched() -> None:
    model = Model()
    before = {name: (dict(module._buffers), set(vars(module))) for name, module in model.named_modules()}
    recording = record(model, (torch.randn(2, 4),))
    stages = split(recording.module, recording.graph, range(len(recording.graph.layers) + 1))
    union = {key for stage in stages for key in stage.module.state_dict()}
    assert union == set(model.state_dict())
    after = {name: (dict(module._buffers), set(vars(module))) for name, module in model.named_modules()}
    assert {name: names for name, (_, names) in before.items()} == {name: names for name, (_, names) in after.items()}
    assert all(before[name][0][key] is after[name][0][key] for name in before for key in before[name][0])
    assert set(model.keeps.state_dict()) == {"weight"}


def test_stages_compute_in_turn_what_the_model_does() -> None:
    model = Model()
    recording = record(model, (torch.randn(2, 4),))
    bounds = range(len(recording.graph.layers) + 1)
    x = torch.randn(5, 4)
    values = {}
    for stage in split(recording.module, recording.graph, bounds):
        made = stage.module(*(values[name] for name in stage.inputs) if stage.index else (x,))
        values.update(zip(stage.outputs, made, strict=True) if not stage.is_last else ())
    assert torch.equal(made, model(x))


def test_twin_stands_for_a_parameter_in_its_stage_only() -> None:
    model = Model()
    recording = record(model, (torch.randn(2, 4),))
    twin = nn.Parameter(torch.zeros(4, 4))
    count = len(recording.graph.layers)
    twins = [{id(model.keeps.weight): twin}, *([{}] * (count - 1))]
    stage, *_ = split(recording.module, recording.graph, (0, count), twins=twins)
    assert dict(stage.module.named_parameters())["keeps.weight"] is twin
    assert model.keeps.weight is not twin
    assert stage.module.get_submodule("keeps").get_buffer("scale") is model.keeps.scale
    assert set(stage.module.state_dict()) == set(model.state_dict())
