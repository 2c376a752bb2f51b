import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.executor.wire import POISON, allocate, decode_specs, describe, encode_specs

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


def test_whether_a_gradient_comes_back_is_told() -> None:
    (spec,) = describe([torch.zeros(2, requires_grad=True)], origin="a message")
    assert spec.gradient  # type: ignore[union-attr]


def test_poison_says_that_nothing_could_be_made() -> None:
    assert decode_specs(POISON) is None


def test_an_object_that_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"message a0>1\.2 holds a slice"):
        describe([slice(1)], origin="message a0>1.2")
