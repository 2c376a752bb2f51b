from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopipe.errors import DocumentError
from autopipe.recorder import rebuild, record
from autopipe.recorder.objects import attributes_with_tensors, resolve_object_class
from tests.recorder import awkward


class Images:
    """A holder, as torchvision has one for images of different sizes."""

    def __init__(self, tensors: Tensor, sizes: list[tuple[int, int]]) -> None:
        self.tensors, self.sizes = tensors, sizes


class Deletes(Images):
    def __del__(self) -> None:
        pass


class Collects(nn.Module):
    def forward(self, x: Tensor) -> Images:
        return Images(x * 2, [(1, 2)])


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, images: Images, x: Tensor) -> Tensor:
        return images.tensors * self.weight + x * images.sizes[0][1]


class PassesObject(nn.Module):
    """Passes an object from one leaf to another, with much between."""

    def __init__(self) -> None:
        super().__init__()
        self.collects, self.first, self.second, self.scores = Collects(), nn.Linear(4, 4), nn.Linear(4, 4), Scores()

    def forward(self, x: Tensor) -> Tensor:
        images = self.collects(x)
        y = self.second(self.first(images.tensors).relu())
        return self.scores(images, y)


def test_object_is_taken_apart_so_that_cuts_need_not_send_it() -> None:
    model = PassesObject()
    recording = record(model, (torch.randn(2, 4),), leaf=(Collects, Scores))
    assert len(recording.graph.layers) >= 2
    x = torch.randn(5, 4)
    assert torch.equal(rebuild(model, recording.graph)(x), model(x))


def test_values_of_an_object_are_checked() -> None:
    recording = record(awkward.Pair(PassesObject()), (torch.randn(2, 4),), leaf=(Collects, Scores))
    assert "expect" in recording.module.code


@pytest.mark.parametrize("name", ["tests.recorder.test_objects.Deletes", "builtins.dict", "no.such.Class", 3])
def test_class_whose_objects_run_code_of_their_own_is_refused(name: Any) -> None:
    with pytest.raises(DocumentError, match="no ordinary class"):
        resolve_object_class(name)


def test_only_what_holds_tensors_is_taken_apart() -> None:
    assert attributes_with_tensors(Images(torch.ones(1), [])) is not None
    for value in (Images(1, []), Deletes(torch.ones(1), []), nn.Linear(1, 1), torch.ones(1), Images):  # type: ignore[arg-type]
        assert attributes_with_tensors(value) is None
