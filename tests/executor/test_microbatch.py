import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.executor.microbatch import batch_of, cut, is_ready, micro_batch_sizes, signature


@given(st.integers(1, 500), st.integers(1, 60))
def test_sizes_add_up_and_differ_by_at_most_one(batch: int, micro_batches: int) -> None:
    sizes = micro_batch_sizes(batch, micro_batches)
    assert sum(sizes) == batch
    assert len(sizes) == min(batch, micro_batches)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(st.integers(1, 40), st.integers(1, 10))
def test_cut_loses_no_sample_and_keeps_their_order(batch: int, micro_batches: int) -> None:
    tree = {"x": torch.arange(batch), "pair": (torch.arange(2 * batch).view(batch, 2), "static")}
    parts = cut(tree, micro_batch_sizes(batch, micro_batches))
    assert torch.equal(torch.cat([part["x"] for part in parts]), tree["x"])
    assert torch.equal(torch.cat([part["pair"][0] for part in parts]), tree["pair"][0])
    assert all(part["pair"][1] == "static" for part in parts)


def test_a_tensor_without_the_batch_is_passed_whole() -> None:
    mask = torch.ones(5, 5)
    scalar = torch.tensor(3.0)
    parts = cut((torch.zeros(4, 2), mask, scalar, None), (2, 2))
    assert all(part[1] is mask and part[2] is scalar and part[3] is None for part in parts)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="0 samples"):
        batch_of(torch.zeros(0, 3))


def test_inputs_without_a_tensor_are_refused() -> None:
    with pytest.raises(InputError, match="no tensor with a batch dimension"):
        batch_of({"flag": True}, torch.tensor(1.0))


def test_signature_tells_shapes_dtypes_and_gradients_apart() -> None:
    x = torch.zeros(2, 3)
    assert signature((x, 1)) == signature((torch.ones(2, 3), 1))
    others = [(torch.zeros(3, 3), 1), (x.double(), 1), (x.clone().requires_grad_(), 1), (x, x)]
    assert all(signature(other) != signature((x, 1)) for other in others)


@dataclasses.dataclass
class Pair:
    x: torch.Tensor
    name: str


def test_dataclasses_and_named_tuples_are_cut_too() -> None:
    parts = cut({"pair": Pair(torch.arange(4), "a")}, (3, 1))
    assert batch_of(Pair(torch.arange(4), "a")) == 4
    assert [part["pair"].x.tolist() for part in parts] == [[0, 1, 2], [3]]
    assert {type(part["pair"]) for part in parts} == {Pair}


@pytest.mark.parametrize(("value", "ready"), [(torch.zeros(2), True), (None, True), ({"x": 1}, False), ([], False)])
def test_only_what_needs_no_copy_is_ready(value: object, ready: bool) -> None:
    assert is_ready(value, torch.device("cpu")) == ready


def test_a_tensor_elsewhere_is_not_ready() -> None:
    assert not is_ready(torch.zeros(2, device="meta"), torch.device("cpu"))
