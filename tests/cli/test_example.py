"""Example inputs: the shapes, dtypes and ranges that were asked for, the same on every call."""

import pytest
import torch
from torch import nn

from autopipe.cli.example import draw_all, smallest_vocabulary
from autopipe.cli.values import TensorSpec
from autopipe.errors import InputError

MODEL = nn.Sequential(nn.Embedding(7, 4), nn.Embedding(5, 4))


def test_integers_lie_below_the_smallest_vocabulary() -> None:
    (ids,), _ = draw_all([TensorSpec(None, (100, 10), "int64", None)], MODEL)
    assert ids.dtype is torch.int64
    assert (ids.min(), ids.max()) == (0, 4)


def test_without_embeddings_integers_are_zero_or_one() -> None:
    assert smallest_vocabulary(nn.Linear(2, 2)) == 2


def test_a_limit_that_is_given_goes_before_the_vocabulary() -> None:
    (ids,), _ = draw_all([TensorSpec(None, (100, 10), "int32", 3)], MODEL)
    assert ids.max() == 2


def test_floats_have_the_default_dtype_unless_they_say_theirs() -> None:
    specs = [TensorSpec(None, (2, 3), None, None), TensorSpec("x", (2,), "float64", None)]
    (plain,), named = draw_all(specs, MODEL, default=torch.bfloat16)
    assert (plain.dtype, plain.shape) == (torch.bfloat16, (2, 3))
    assert named["x"].dtype is torch.float64


def test_two_draws_are_equal_and_leave_the_random_state_alone() -> None:
    specs = [TensorSpec(None, (4, 4), None, None), TensorSpec("mask", (4,), "bool", None)]
    before = torch.get_rng_state()
    first, second = draw_all(specs, MODEL), draw_all(specs, MODEL)
    assert torch.equal(first[0][0], second[0][0])
    assert torch.equal(first[1]["mask"], second[1]["mask"])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (TensorSpec(None, (2,), "int65", None), "torch has no dtype 'int65'"),
        (TensorSpec(None, (2,), "manual_seed", None), "torch has no dtype"),
        (TensorSpec(None, (2,), "int64", 0), "no torch.int64 tensor of shape"),
        (TensorSpec(None, (10**9, 10**9), None, None), "can be drawn"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(spec: TensorSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        draw_all([spec], MODEL)
