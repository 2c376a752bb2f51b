"""Calibration: factors by kind of operator, from measured times."""

import math

import msgspec
import pytest

from autopipe.documents.profile import Profile, Source
from autopipe.documents.work import LayerWork, OperatorKind, Sweep, Work
from autopipe.errors import InputError
from autopipe.hardware.calibration import calibrate, calibration_of
from autopipe.hardware.lookup import find_device
from autopipe.hardware.roofline import LAUNCH, operators_ns
from tests.profiles import cost, layer, profile

A100 = find_device("a100-80-sxm")
TRUTH = {"matmul": 1.6, "pointwise": 0.7, "reduction": 2.5, LAUNCH: 1.2}


def operators(position: int) -> tuple[Work, ...]:
    """Three kinds and many starts, each the heaviest of every fourth layer."""
    matmul, pointwise, reduction, starts = (10 if position % 4 == heaviest else 1 for heaviest in range(4))
    return (
        Work(kind=OperatorKind.MATMUL, dtype="float16", flops=10**11 * matmul, bytes=10**6),
        Work(kind=OperatorKind.POINTWISE, dtype="float16", bytes=10**9 * pointwise),
        Work(kind=OperatorKind.REDUCTION, dtype="float16", bytes=10**9 * reduction),
        Work(kind=OperatorKind.POINTWISE, dtype="float16", bytes=16, calls=200 * starts),
    )


def measured(source: Source = Source.MEASURED, device: str = "NVIDIA A100-SXM4-80GB") -> Profile:
    """A profile in which every kind takes as much longer than told as `TRUTH` says."""
    times = [operators_ns(operators(position), A100, TRUTH) for position in range(12)]
    costs = [msgspec.structs.replace(cost(ns, 2 * ns), source=source) for ns in times]
    found = profile([layer(f"layer {position}", (each,)) for position, each in enumerate(costs)])
    work = tuple(
        LayerWork(layer=position, sweep=sweep, micro_batch=1, operators=operators(position) * calls)
        for position in range(12)
        for sweep, calls in ((Sweep.FORWARD, 1), (Sweep.BACKWARD, 2))
    )
    return msgspec.structs.replace(found, work=work, device=device)


def test_a_calibration_mends_most_of_what_the_roofline_gets_wrong() -> None:
    factors = calibrate(measured(), A100).factors
    # Each is drawn towards the factor of all together, so the order is kept and the distances shrink.
    assert TRUTH["pointwise"] < factors["pointwise"] < factors["matmul"] < factors["reduction"] < TRUTH["reduction"]
    assert factors["matmul"] == pytest.approx(TRUTH["matmul"], rel=0.05)

    def error(factors: dict[str, float]) -> float:
        told = [operators_ns(operators(position), A100, factors) for position in range(4)]
        true = [operators_ns(operators(position), A100, TRUTH) for position in range(4)]
        return sum(abs(math.log(one / other)) for one, other in zip(told, true, strict=True))

    assert error(factors) < 0.25 * error({})


def test_a_kind_that_was_not_timed_gets_the_factor_of_all_together() -> None:
    factors = calibrate(measured(), A100).factors
    known = [factors[kind] for kind in ("matmul", "pointwise", "reduction")]
    assert factors["convolution"] == pytest.approx(factors["attention"])
    assert min(known) < factors["convolution"] < max(known)


def test_estimates_cannot_calibrate() -> None:
    with pytest.raises(InputError, match="holds no measured times together with the work"):
        calibrate(measured(Source.ROOFLINE), A100)


def test_a_profile_of_a_device_that_nobody_knows_cannot_calibrate() -> None:
    with pytest.raises(InputError, match="of which the catalogue has no figures"):
        calibration_of(measured(device="warp drive"), A100)


def test_the_device_of_the_profile_is_found_by_its_driver_name() -> None:
    assert calibration_of(measured(), find_device("h100-sxm")) == calibrate(measured(), A100)
