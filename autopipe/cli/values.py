"""What a person writes behind an option becomes a value: tensors to draw, sizes in bytes, lists of sizes."""

import re
from typing import Any, NamedTuple

import click

_TENSOR = re.compile(r"(?:([A-Za-z_]\w*)=)?([0-9]+(?:x[0-9]+)*)(?::([a-z]\w*)(?:<([0-9]+))?)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?i?B?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class TensorSpec(NamedTuple):
    """A tensor to draw: for which keyword (None: the next positional one), its shape, dtype and upper limit."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str | None
    high: int | None


class TensorParameter(click.ParamType):
    """``[NAME=]SHAPE[:DTYPE[<HIGH]]``, for example ``8x1024:int64<50257``."""

    name = "[NAME=]SHAPE[:DTYPE[<HIGH]]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TensorSpec:
        """Return the `TensorSpec` that ``value`` writes."""
        match = _TENSOR.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no tensor: write for example 8x1024:int64<50257 or mask=8x1024:bool.", param, ctx)
        name, shape, dtype, high = match.groups()
        sizes = tuple(int(size) for size in shape.split("x"))
        return TensorSpec(name, sizes, dtype, None if high is None else int(high))


class SizeParameter(click.ParamType):
    """A size in bytes with or without a unit, for example ``80GiB`` or ``24 GB``."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes that ``value`` writes."""
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no size: write for example 80GiB.", param, ctx)
        size = round(float(match[1]) * _UNITS[match[2].lower().removesuffix("b")])
        if size <= 0:
            self.fail(f"{value!r} is no memory at all: write for example 80GiB.", param, ctx)
        return size


class SizesParameter(click.ParamType):
    """Whole numbers from 1 on, separated by commas, for example ``1,2,4``."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers in ``value``, ascending, each once."""
        words = str(value).split(",")
        if not all(re.fullmatch(r"[0-9]{1,9}", word.strip()) and int(word) > 0 for word in words):
            self.fail(f"{value!r} is no list of sizes: write for example 1,2,4.", param, ctx)
        return tuple(sorted({int(word) for word in words}))


class MicroBatchesParameter(SizesParameter):
    """Sizes as ``1,2,4``, or ``auto``."""

    name = "N,N,...|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers in ``value``, ascending, or ``auto``."""
        return "auto" if str(value).strip().lower() == "auto" else super().convert(value, param, ctx)
