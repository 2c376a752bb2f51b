"""The roofline times an operator by its arithmetic or its memory traffic, whichever takes longer, and a floor.

References
----------
Williams, Waterman and Patterson, Roofline: an insightful visual performance model for multicore architectures,
Communications of the ACM 52(4), 2009.
"""

from collections.abc import Iterable, Mapping

from autopipe.documents.work import OperatorKind, Work
from autopipe.hardware.specification import Platform, Specification

LAUNCH = "launch"

# What eager operators reach of the maker's figures, at sizes that fill the device. They are assumptions, the same for
# every device; a calibration replaces them.
MATMUL_EFFICIENCY = 0.70
CONVOLUTION_EFFICIENCY = 0.50
ATTENTION_EFFICIENCY = 0.50
BANDWIDTH_EFFICIENCY = 0.80
# Rows that are no multiple of 16 bytes keep matrix units from loading them in one piece.
UNALIGNED_EFFICIENCY = 0.50

_ARITHMETIC = {
    OperatorKind.MATMUL: MATMUL_EFFICIENCY,
    OperatorKind.CONVOLUTION: CONVOLUTION_EFFICIENCY,
    OperatorKind.ATTENTION: ATTENTION_EFFICIENCY,
}


def operators_ns(operators: Iterable[Work], device: Specification, factors: Mapping[str, float] | None = None) -> int:
    """Return the nanoseconds of ``operators``, one after the other on ``device``.

    Parameters
    ----------
    factors : mapping, optional
        What a calibration found: by kind of operator, and for `LAUNCH`, how much longer it takes than thought.
    """
    parts = by_kind(operators, device)
    return round(sum(duration * (factors or {}).get(kind, 1.0) for kind, duration in parts.items()))


def by_kind(operators: Iterable[Work], device: Specification) -> dict[str, float]:
    """Return the nanoseconds of ``operators`` by their kind, and under `LAUNCH` those of their floors."""
    parts: dict[str, float] = {}
    for work in operators:
        kind = str(work.kind)
        parts[kind] = parts.get(kind, 0.0) + work.calls * _busy_ns(work, device)
        parts[LAUNCH] = parts.get(LAUNCH, 0.0) + work.calls * device.launch_ns.value
    return parts


def _busy_ns(work: Work, device: Specification) -> float:
    """Return how long one call keeps the device busy: with arithmetic, or with traffic if that takes longer."""
    traffic = work.bytes / (device.bandwidth_bytes_per_s.value * BANDWIDTH_EFFICIENCY)
    if not work.flops:
        return 1e9 * traffic
    rate = flops_per_s(device, work.dtype, on_matrix_units=True, kind=work.kind)
    arithmetic = work.flops / (rate * _ARITHMETIC.get(work.kind, 1.0))
    if not work.is_aligned and device.platform is not Platform.CPU:
        arithmetic /= UNALIGNED_EFFICIENCY
    return 1e9 * max(arithmetic, traffic)


def flops_per_s(device: Specification, dtype: str, *, on_matrix_units: bool, kind: OperatorKind | None = None) -> int:
    """Return the rate of arithmetic in ``dtype``; one that the device lacks runs as float32.

    As torch sets it by default, convolutions of float32 run as tfloat32 where there is such a thing, and products
    do not.
    """
    table = device.matrix_flops_per_s if on_matrix_units else device.vector_flops_per_s
    if dtype == "float32" and kind is OperatorKind.CONVOLUTION and "tfloat32" in table:
        return table["tfloat32"].value
    found = table.get(dtype) or table.get("float32") or device.vector_flops_per_s["float32"]
    return found.value


def speed_beside(device: Specification, other: Specification, dtype: str) -> float:
    """Return how many times faster than ``other`` a device is in ``dtype``.

    The geometric mean of arithmetic and bandwidth, for a layer is bound now by one and now by the other.
    """
    arithmetic = flops_per_s(device, dtype, on_matrix_units=True) / flops_per_s(other, dtype, on_matrix_units=True)
    traffic = device.bandwidth_bytes_per_s.value / other.bandwidth_bytes_per_s.value
    return float((arithmetic * traffic) ** 0.5)
