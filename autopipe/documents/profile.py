"""A `Profile` is the time and memory of every layer of a graph on one device, at several micro-batch sizes."""

from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module

import msgspec

from autopipe.documents.conditions import Conditions
from autopipe.documents.files import Document, fingerprint
from autopipe.documents.graph import Graph
from autopipe.documents.profile_faults import profile_faults
from autopipe.documents.work import LayerWork


class Source(StrEnum):
    """Where a cost comes from."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    ROOFLINE = "roofline"
    CALIBRATED = "calibrated"


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a median can be trusted: median absolute deviation, minimum and number of rounds."""

    mad_ns: int
    minimum_ns: int
    rounds: int


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time and activation memory of one layer (or of the loss) for one micro-batch.

    ``backward_ns`` is the full backward; ``input_grad_ns`` and ``weight_grad_ns`` its two parts, None when
    not measured. ``saved_bytes`` are the storages that the layer makes and its own backward needs
    (parameters, model inputs and values received from earlier layers excluded); ``transient_bytes`` the extra
    peak while its backward runs, and ``forward_transient_bytes`` while its forward runs, both above what stays
    afterwards. ``ending_transient_bytes`` is the peak of its backward as the last one of a stage, where the received
    gradients are there to the end; None where that was not measured.

    ``host_ns`` is how long the host takes to start the work of forward and backward on an accelerator, None where
    the host does the work itself.

    A layer that recomputes keeps the values that it reads until its backward, which takes ``recompute_ns``
    longer. Its ``saved_recompute_bytes``, ``transient_recompute_bytes`` (what it saves again included),
    ``ending_transient_recompute_bytes`` and ``forward_transient_recompute_bytes`` are then what the figures without
    that word are otherwise. All are None for a layer that cannot recompute.
    """

    forward_ns: int
    backward_ns: int
    input_grad_ns: int | None = None
    weight_grad_ns: int | None = None
    recompute_ns: int | None = None
    saved_bytes: int
    saved_recompute_bytes: int | None = None
    transient_bytes: int
    transient_recompute_bytes: int | None = None
    ending_transient_bytes: int | None = None
    ending_transient_recompute_bytes: int | None = None
    forward_transient_bytes: int = 0
    forward_transient_recompute_bytes: int | None = None
    host_ns: int | None = None
    source: Source
    forward_spread: Spread | None = None
    backward_spread: Spread | None = None


class ProfiledLayer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one layer holds and costs; ``costs`` has one entry per micro-batch size of the profile."""

    name: str
    kind: str = ""
    parameters: tuple[str, ...] = ()
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    optimizer_ns: int | None = None
    group: int = 0
    costs: tuple[Cost, ...]


class ProfiledValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that crosses between layers, with its bytes at each micro-batch size.

    ``saved_at`` is the first layer after the producer whose backward needs it, None when no later layer's does;
    ``producer_saves`` tells that the producer's own does, whose ``saved_bytes`` counts it then.
    ``storage_bytes`` are what it keeps alive where it was made (more than its own where it is a part of a larger
    storage, 0 where an earlier value, a parameter or an input holds that storage), () for as many as ``bytes``;
    ``readers`` the layers that read this storage under any name, () for the consumers. ``gradient_bytes`` are what
    its gradient keeps alive from the backward of its last reader until that of its producer (a gradient that
    is part of a larger storage keeps all of it), as far as layers lie between the two; 0 where none do, () where
    it was not measured. ``is_rebuilt`` tells that a stage makes the value again instead of receiving it.
    """

    name: str
    producer: int
    consumers: tuple[int, ...]
    requires_grad: bool
    bytes: tuple[int, ...]
    saved_at: int | None = None
    producer_saves: bool = False
    storage_bytes: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()
    gradient_bytes: tuple[int, ...] = ()
    is_rebuilt: bool = False


class SharedParameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter that several layers read: its layers and bytes."""

    name: str
    layers: tuple[int, ...]
    bytes: int


class WholeStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The unsplit model's forward and backward at one micro-batch size, and what the layers' sum misses."""

    micro_batch: int
    step_ns: int
    layers_ns: int


class ProfiledRank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device of one rank: its memory, the machine it is in, and its speed beside the first rank's.

    ``step_ns`` is the sum of its own layers and loss at the largest micro-batch size.
    """

    device: str
    memory_bytes: int | None = None
    node: int = 0
    step_ns: int = 0
    speed: float = 1.0


class ProfiledLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured way between two ranks, in either direction."""

    source: int
    target: int
    latency_ns: int
    bytes_per_s: int


class Profile(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.profile"):
    """Time and memory of every layer of a model on one device.

    ``micro_batches`` are the profiled sizes in samples, ascending; every ``costs`` and ``bytes`` tuple is
    aligned with it. ``loss`` is the cost of the loss function, part of whichever stage is last.
    ``link_latency_ns`` and ``link_bytes_per_s`` describe the link between neighbouring ranks. ``work`` is what
    the layers ask of a device, from which times can be told for another one. Where several ranks were measured,
    costs are the first one's, ``ranks`` and ``links`` say how the others stand beside it, and ``conditions`` what a
    message takes of its two ranks' processors (None: not measured).
    """

    model: str
    device: str
    device_memory_bytes: int | None = None
    torch: str
    dtype: str
    autocast: str | None = None
    optimizer: str
    loss_name: str
    clock: str
    foreign_load: float | None = None
    micro_batches: tuple[int, ...]
    layers: tuple[ProfiledLayer, ...]
    values: tuple[ProfiledValue, ...]
    loss: tuple[Cost, ...]
    shared: tuple[SharedParameter, ...] = ()
    forbidden_cuts: tuple[int, ...] = ()
    whole: tuple[WholeStep, ...] = ()
    link_latency_ns: int | None = None
    link_bytes_per_s: int | None = None
    ranks: tuple[ProfiledRank, ...] = ()
    links: tuple[ProfiledLink, ...] = ()
    conditions: Conditions | None = None
    work: tuple[LayerWork, ...] = ()
    graph_fingerprint: str
    graph: Graph | None = None

    def __repr__(self) -> str:
        # Looked up when it is shown: tables are drawn by a room that knows this one.
        return str(import_module("autopipe.reporting.shown").text_of(self))

    def _repr_html_(self) -> str:
        return str(import_module("autopipe.reporting.shown").html_of(self))

    @property
    def source(self) -> Source:
        """Where its times come from: `Source.MEASURED` unless they were told without the device."""
        found = {cost.source for cost in self.loss}
        return next((told for told in (Source.ROOFLINE, Source.CALIBRATED) if told in found), Source.MEASURED)

    @property
    def fingerprint(self) -> str:
        """A digest of the whole profile, which a plan made from it carries."""
        return fingerprint(self)

    def faults(self) -> Iterator[str]:
        """Yield what its figures contradict each other in: other lengths, no order, values below 0 or above 2**50."""
        return profile_faults(self)
