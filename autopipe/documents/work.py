"""Work is what an operator asks of any device: operations of arithmetic, and bytes of memory traffic."""

from enum import StrEnum

import msgspec


class OperatorKind(StrEnum):
    """Classes of operators whose speed has the same cause."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    REDUCTION = "reduction"
    INDEXING = "indexing"
    POINTWISE = "pointwise"


class Sweep(StrEnum):
    """The parts of a step that are counted apart; the input-gradient part lies within the backward."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRAD = "input_grad"


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``calls`` equal calls of an operator, each of ``flops`` and ``bytes``.

    ``flops`` are counted for products, convolutions and attention only, a multiplication and an addition as two.
    ``bytes`` are those of all tensors that are read and written, each once a call. ``is_aligned`` tells whether
    the sizes suit matrix units: rows of a multiple of 16 bytes.
    """

    kind: OperatorKind
    dtype: str
    flops: int = 0
    bytes: int
    calls: int = 1
    is_aligned: bool = True


class LayerWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one sweep of a layer works through for one micro-batch.

    Of identical layers, ``layer`` is the first; the loss has the number of layers as its ``layer``. Layers between
    which no cut is legal are counted together, as the first of them.
    """

    layer: int
    sweep: Sweep
    micro_batch: int
    operators: tuple[Work, ...]
