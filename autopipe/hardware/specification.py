"""A specification is what is known of a device: arithmetic, memory, bandwidth and links, each with its source."""

from enum import StrEnum

import msgspec

from autopipe.documents.files import Document
from autopipe.errors import InputError
from autopipe.hardware.cluster import Link


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number with where it comes from."""

    value: int
    source: str


class Platform(StrEnum):
    """Whose operators torch runs on the device."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"


class Specification(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.device"):
    """One kind of device.

    Attributes
    ----------
    name : str
        What a user writes, for example ``h100-sxm``.
    matches : tuple of str
        The names by which its driver calls it.
    capability : tuple of int, optional
        The compute capability of a CUDA device, (major, minor).
    memory_bytes, context_bytes : Figure
        All memory, and what of it a process of torch takes for itself before the first tensor.
    bandwidth_bytes_per_s : Figure
        Of its memory.
    matrix_flops_per_s, vector_flops_per_s : dict of Figure
        By dtype: dense products on matrix units, with a sum of single precision where there is a choice; all
        other arithmetic.
    link_bytes_per_s, link_latency_ns : Figure
        From one device to another in the same machine, one direction.
    launch_ns : Figure
        The least time of an operator.
    """

    name: str
    title: str
    matches: tuple[str, ...] = ()
    platform: Platform
    capability: tuple[int, int] | None = None
    memory_bytes: Figure
    context_bytes: Figure
    bandwidth_bytes_per_s: Figure
    matrix_flops_per_s: dict[str, Figure]
    vector_flops_per_s: dict[str, Figure]
    link_bytes_per_s: Figure
    link_latency_ns: Figure
    launch_ns: Figure

    @property
    def usable_bytes(self) -> int:
        """The memory that is left for tensors."""
        return self.memory_bytes.value - self.context_bytes.value

    @property
    def link(self) -> Link:
        """The link between two such devices in one machine."""
        return Link(latency_ns=self.link_latency_ns.value, bytes_per_s=self.link_bytes_per_s.value)


def check_specification(specification: Specification) -> None:
    """Return if every figure of ``specification`` can be computed with.

    Raises
    ------
    InputError
        With the path of the first figure that cannot.
    """
    for path, figure in _figures(specification):
        least = 0 if path in ("context_bytes", "link_latency_ns", "launch_ns") else 1
        if not least <= figure.value < 1 << 60:
            raise InputError(
                f"{path} of the device {specification.name!r} is {figure.value}: give a number of at least {least}."
            )
    if specification.usable_bytes < 1:
        raise InputError(
            f"context_bytes of the device {specification.name!r} leaves nothing of its memory_bytes: give less."
        )
    if "float32" not in specification.vector_flops_per_s:
        raise InputError(f"vector_flops_per_s of the device {specification.name!r} lacks float32: add it.")


def _figures(specification: Specification) -> list[tuple[str, Figure]]:
    found = []
    for name in specification.__struct_fields__:
        value = getattr(specification, name)
        if isinstance(value, Figure):
            found.append((name, value))
        elif isinstance(value, dict):
            found += [(f"{name}.{dtype}", figure) for dtype, figure in value.items()]
    return found
