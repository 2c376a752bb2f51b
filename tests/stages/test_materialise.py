"""A model built without memory gets, on each rank, the very numbers that building it whole would give."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from autopipe.errors import DocumentError, InputError, MismatchError
from autopipe.stages.materialise import draw_weights, load_weights
from tests.models import CNN, GPT, JOBS

CPU = torch.device("cpu")


class Attention(nn.Module):
    """Has parts whose resets are hidden, write to their children, or are of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.lstm = nn.LSTM(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.attention(x, x, x)[0]))


def on_meta(build: Any) -> nn.Module:
    with torch.device("meta"):
        return build()


@pytest.mark.parametrize("build", [GPT, CNN, Attention, JOBS["mlp"].build, JOBS["unet"].build])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_part_draws_what_the_constructor_draws(build: Any, parts: int) -> None:
    torch.manual_seed(7)
    wanted = build().state_dict()
    after = torch.rand(3)
    for part in range(parts):
        torch.manual_seed(7)
        model = on_meta(build)
        names = [name for index, name in enumerate(wanted) if index % parts == part]
        draw_weights(model, dict.fromkeys(names, CPU))
        assert torch.equal(torch.rand(3), after)
        mine = model.state_dict()
        assert [name for name in names if not torch.equal(mine[name], wanted[name])] == []
        tied = {"head.weight", "tokens.weight"}
        others = set(wanted) - set(names) - (tied if tied & set(names) else set())
        assert all(mine[name].is_meta for name in others)


def test_an_initialiser_runs_after_all_resets_as_apply_does() -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    torch.manual_seed(7)
    wanted = JOBS["mlp"].build().apply(initialise).state_dict()
    torch.manual_seed(7)
    model = on_meta(JOBS["mlp"].build)
    draw_weights(model, {"4.weight": CPU, "4.bias": CPU}, initialise=initialise)
    assert torch.equal(model[4].weight, wanted["4.weight"])
    assert torch.equal(model[4].bias, wanted["4.bias"])


def test_what_no_module_writes_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    model = on_meta(lambda: nn.Sequential(nn.Linear(3, 3), Scale()))
    with pytest.raises(InputError, match=r"1\.scale on the meta device got no values"):
        draw_weights(model, {"0.weight": CPU, "1.scale": CPU})


def saved(tmp_path: Path, form: str, state: dict[str, Tensor]) -> Path:
    """Write a state in one of the forms that are read, and return where."""
    if form == "torch":
        torch.save(state, tmp_path / "model.pt")
        return tmp_path / "model.pt"
    state = {name: tensor.clone() for name, tensor in state.items() if name != "head.weight"}
    if form == "safetensors":
        save_file(state, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors"
    names = list(state)
    homes = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(homes.values()):
        save_file({name: state[name] for name in names if homes[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return tmp_path


@pytest.mark.parametrize("form", ["torch", "safetensors", "several"])
def test_a_rank_reads_its_part_of_a_checkpoint(tmp_path: Path, form: str) -> None:
    whole = GPT()
    path = saved(tmp_path, form, whole.state_dict())
    model = on_meta(GPT)
    wanted = {"head.weight": CPU, "blocks.3.up.weight": CPU}
    load_weights(model, wanted, path)
    assert torch.equal(model.head.weight, whole.tokens.weight)
    assert torch.equal(model.blocks[3].up.weight, whole.blocks[3].up.weight)
    assert model.blocks[0].up.weight.is_meta


def test_checkpoints_of_other_models_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "torch", GPT(width=32).state_dict())
    model = on_meta(GPT)
    with pytest.raises(MismatchError, match="has shape"):
        load_weights(model, {"tokens.weight": CPU}, path)
    with pytest.raises(MismatchError, match=r"has no 4\.weight"):
        load_weights(on_meta(JOBS["mlp"].build), {"4.weight": CPU}, path)
    with pytest.raises(DocumentError, match="no file"):
        load_weights(model, {"tokens.weight": CPU}, tmp_path / "nothing.pt")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert copy.deepcopy(model) is not model
