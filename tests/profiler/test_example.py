import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.profiler.example import batch_of, choose_sizes, resize
from autopipe.profiler.layers import Example


def example(batch: int) -> Example:
    return Example((torch.arange(batch * 2).view(batch, 2),), {"scale": 3.0}, torch.arange(batch))


@given(st.integers(1, 9), st.integers(1, 30))
def test_samples_are_the_examples_own_in_turn(batch: int, samples: int) -> None:
    resized = resize(example(batch), samples)
    assert batch_of(resized) == samples
    assert resized.target.tolist() == [position % batch for position in range(samples)]
    assert resized.args[0][:, 0].tolist() == [2 * (position % batch) for position in range(samples)]
    assert resized.kwargs == {"scale": 3.0}


def test_a_resized_example_shares_no_memory_with_it() -> None:
    table = torch.zeros(7, 3)
    given_example = Example((torch.zeros(4, 2), table), {}, None)
    resized = resize(given_example, 4)
    for tensor in resized.args:
        tensor.add_(1)
    assert resized.args[1].shape == table.shape
    assert given_example.args[0].sum() == 0
    assert table.sum() == 0


def test_the_batch_comes_from_the_first_tensor_that_has_one() -> None:
    assert batch_of(Example((1, torch.tensor(2.0)), {"x": [torch.zeros(5, 2)]}, torch.zeros(9))) == 5


@pytest.mark.parametrize(("args", "words"), [((torch.zeros(0, 3),), "empty"), ((3.0,), "batch dimension")])
def test_an_example_without_samples_is_refused(args: tuple[object, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        batch_of(Example(args, {}, None))


@given(st.integers(1, 1000))
def test_chosen_sizes_ascend_to_the_examples_batch(batch: int) -> None:
    sizes = choose_sizes(batch, batch_is_free=True)
    assert len(sizes) >= 2
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] >= 1
    assert sizes[-1] == max(2, batch)


def test_a_fixed_batch_is_measured_as_it_is() -> None:
    assert choose_sizes(8, batch_is_free=False) == (8,)


@dataclasses.dataclass
class Rows:
    x: torch.Tensor
    name: str


def test_tensors_inside_a_dataclass_are_resized_too() -> None:
    example = Example((Rows(torch.arange(3), "a"),), {}, {"y": torch.arange(3)})
    assert batch_of(example) == 3
    larger = resize(example, 4)
    assert larger.args[0].x.tolist() == [0, 1, 2, 0]
    assert larger.args[0].name == "a"
    assert larger.target["y"].tolist() == [0, 1, 2, 0]
