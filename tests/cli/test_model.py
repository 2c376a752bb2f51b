"""MODEL on the command line: from files and packages, and every way it can be wrong."""

from pathlib import Path

import pytest
import torch
from torch import nn

from autopipe.cli.model import build, load
from autopipe.errors import InputError

SOURCE = """
from dataclasses import dataclass

import torch
from torch import nn

import neighbour_of_the_model

@dataclass
class Settings:
    width: "int" = 4

def model():
    return nn.Linear(Settings().width, 2)

def with_example():
    return model(), torch.ones(3, 4), loss

def with_keywords():
    return model(), {"input": torch.ones(3, 4)}, None

def loss(output, target=None):
    return output.sum()

def broken():
    raise ValueError("no weights here")

def number():
    return 3

ready = nn.Identity()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "neighbour_of_the_model.py").write_text("")
    file = tmp_path / "my_model.py"
    file.write_text(SOURCE)
    return str(file)


def test_a_factory_in_a_file_gives_its_model(path: str) -> None:
    built = build(f"{path}:model")
    assert isinstance(built.model, nn.Linear)
    assert (built.args, built.kwargs, built.loss_fn) == (None, {}, None)


def test_a_factory_in_a_package_gives_its_model() -> None:
    assert isinstance(build("tests.models:mlp").model, nn.Sequential)


def test_a_class_and_a_ready_module_serve_as_well(path: str) -> None:
    assert isinstance(build("tests.models:GPT").model, nn.Module)
    assert isinstance(build(f"{path}:ready").model, nn.Identity)


def test_a_factory_may_give_example_and_loss(path: str) -> None:
    built = build(f"{path}:with_example")
    assert built.args is not None
    assert torch.equal(built.args[0], torch.ones(3, 4))
    assert built.loss_fn is not None
    assert built.loss_fn(torch.ones(2)) == 2


def test_an_example_may_be_a_mapping_of_keywords(path: str) -> None:
    built = build(f"{path}:with_keywords")
    assert built.args == ()
    assert list(built.kwargs) == ["input"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", r"calling .*:broken\(\) failed: ValueError: no weights here \(.*my_model.py, line 26\)"),
        ("number", "gives a int, and a model is needed"),
        ("missing", "has no 'missing'; it has .*model, with_example"),
    ],
)
def test_a_factory_that_gives_no_model_is_named(path: str, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(f"{path}:{name}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("my_model", "names no function: write package.module:factory"),
        ("my_model.py:", "names no function"),
        ("nowhere/my_model.py:model", "there is no file nowhere/my_model.py"),
        ("no_such_package.module:model", "importing no_such_package.module failed: ModuleNotFoundError"),
    ],
)
def test_a_place_that_does_not_exist_is_named(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(spec)


def test_a_file_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(InputError, match=r"ZeroDivisionError: division by zero \(.*raises.py, line 2\)"):
        load(f"{file}:model")
