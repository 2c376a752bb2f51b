import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.executor.wire import POISON, TensorSpec, allocate, decode_specs, describe, encode_specs, flat

PLAIN = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20), st.booleans(), st.none())


@given(st.lists(PLAIN, max_size=5))
def test_plain_values_come_out_as_they_went_in(values: list[object]) -> None:
    specs = decode_specs(encode_specs(describe(values, origin="a message")))
    assert specs is not None
    for value, copy in zip(values, allocate(specs, torch.device("cpu")), strict=True):
        assert type(copy) is type(value)
        assert copy == value or (isinstance(value, float) and math.isnan(value) and math.isnan(copy))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_a_buffer_has_the_senders_shape_and_dtype(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 0, 5, dtype=dtype)
    specs = decode_specs(encode_specs(describe([tensor], origin="a message")))
    assert specs is not None
    (buffer,) = allocate(specs, torch.device("cpu"))
    assert (buffer.shape, buffer.dtype) == (tensor.shape, dtype)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(6, 4)[::2],
        torch.randn(1, 5).expand(3, 5),
        torch.tensor(2.0),
        torch.zeros(0, 3).t(),
    ],
)
def test_a_tensor_arrives_with_its_values_and_if_dense_its_strides(tensor: torch.Tensor) -> None:
    specs = decode_specs(encode_specs(describe([tensor], origin="a message")))
    assert specs is not None
    (buffer,) = allocate(specs, torch.device("cpu"))
    flat(buffer, specs[0].order).copy_(flat(tensor, specs[0].order))
    assert torch.equal(buffer, tensor)
    dense = tensor.untyped_storage().nbytes() == tensor.nbytes
    assert buffer.stride() == tensor.stride() or not dense


def test_the_same_values_in_another_order_are_accepted_and_another_shape_is_not() -> None:
    specs = [describe([t], origin="x")[0] for t in (torch.zeros(2, 3), torch.zeros(3, 2).t(), torch.zeros(3, 2))]
    assert specs[0].accepts(specs[1])
    assert not specs[0].accepts(specs[2])
    assert not specs[0].accepts(describe([None], origin="x")[0])


def test_whether_a_gradient_comes_back_is_told() -> None:
    (spec,) = describe([torch.zeros(2, requires_grad=True)], origin="a message")
    assert spec.gradient  # type: ignore[union-attr]


def test_poison_says_that_nothing_could_be_made() -> None:
    assert decode_specs(POISON) is None


def test_an_object_that_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"message a0>1\.2 holds a slice"):
        describe([slice(1)], origin="message a0>1.2")


def test_a_part_of_a_larger_tensor_keeps_the_order_of_its_dimensions() -> None:
    """As the gradients of concatenated feature maps: kernels would add in another order (met in SegFormer)."""
    part = torch.randn(2, 8, 8, 32).permute(0, 3, 1, 2)[:, :16]
    (spec,) = describe([part], origin="a message")
    (buffer,) = allocate((spec,), torch.device("cpu"))
    assert buffer.stride() == (1024, 1, 128, 16)


def test_an_expanded_tensor_is_laid_out_as_its_shape_says() -> None:
    (spec,) = describe([torch.randn(2, 1).expand(2, 3)], origin="a message")
    (buffer,) = allocate((spec,), torch.device("cpu"))
    assert buffer.stride() == (3, 1)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3),
        torch.zeros(3, 2).t(),
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, requires_grad=True),
    ],
)
def test_a_tensor_is_taken_exactly_where_its_specification_is_accepted(value: torch.Tensor) -> None:
    (expected,) = describe([torch.zeros(2, 3)], origin="a message")
    assert isinstance(expected, TensorSpec)
    assert expected.takes(value) == expected.accepts(describe([value], origin="a message")[0])


@pytest.mark.parametrize("value", [None, 1, "text"])
def test_no_plain_value_is_taken_for_a_tensor(value: object) -> None:
    (expected,) = describe([torch.zeros(())], origin="a message")
    assert isinstance(expected, TensorSpec)
    assert not expected.takes(value)
