"""The roofline: arithmetic, traffic and floors."""

import pytest

from autopipe.documents.work import OperatorKind, Work
from autopipe.hardware.lookup import find_device
from autopipe.hardware.roofline import (
    BANDWIDTH_EFFICIENCY,
    LAUNCH,
    MATMUL_EFFICIENCY,
    by_kind,
    operators_ns,
    speed_beside,
)

A100 = find_device("a100-80-sxm")


def product(flops, size=0, dtype="float16", **fields):
    return Work(kind=OperatorKind.MATMUL, dtype=dtype, flops=flops, bytes=size, **fields)


def test_a_large_product_takes_its_arithmetic():
    flops = 312 * 10**12
    assert operators_ns([product(flops)], A100) == pytest.approx(1e9 / MATMUL_EFFICIENCY, rel=1e-4)


def test_a_copy_takes_its_traffic():
    copy = Work(kind=OperatorKind.POINTWISE, dtype="float32", bytes=2039 * 10**9)
    assert operators_ns([copy], A100) == pytest.approx(1e9 / BANDWIDTH_EFFICIENCY, rel=1e-4)


def test_small_operators_take_their_floor_each():
    assert operators_ns([product(1000, 1000, calls=7)], A100) == pytest.approx(7 * A100.launch_ns.value, abs=7)


def test_single_precision_is_slower_and_convolutions_take_tensor_float():
    half, single = (by_kind([product(10**15, dtype=dtype)], A100)["matmul"] for dtype in ("float16", "float32"))
    assert single / half == pytest.approx(312 / 19.5)
    convolution = Work(kind=OperatorKind.CONVOLUTION, dtype="float32", flops=10**15, bytes=0)
    assert by_kind([convolution], A100)["convolution"] < single


def test_odd_sizes_cannot_use_matrix_units_fully():
    assert by_kind([product(10**15, is_aligned=False)], A100)["matmul"] > by_kind([product(10**15)], A100)["matmul"]


def test_factors_correct_by_kind():
    operators = [product(10**15, calls=2)]
    parts = by_kind(operators, A100)
    expected = 2 * parts["matmul"] + 3 * parts[LAUNCH]
    assert operators_ns(operators, A100, {"matmul": 2.0, LAUNCH: 3.0}) == pytest.approx(expected)


def test_speeds_of_two_devices_are_inverse():
    v100 = find_device("v100-32")
    assert speed_beside(v100, A100, "float16") * speed_beside(A100, v100, "float16") == pytest.approx(1)
    assert speed_beside(v100, A100, "float16") < 1
