"""A `Timeline` is what every rank did when, simulated or measured."""

from enum import StrEnum
from importlib import import_module

import msgspec

from autopipe.documents.files import Document


class Lane(StrEnum):
    """What a rank was doing in a span."""

    COMPUTE = "compute"
    WAIT = "wait"
    SEND = "send"
    RECEIVE = "receive"
    OPTIMIZER = "optimizer"


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action on one lane of one rank; ``label`` is its text form, for example ``F0.3``.

    ``held_bytes`` is what the rank holds while it computes, None where it is not known.
    """

    lane: Lane
    label: str
    start_ns: int
    end_ns: int
    held_bytes: int | None = None


class RankTimeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spans of one rank in order of their start, and its peaks."""

    rank: int
    spans: tuple[Span, ...]
    peak_in_flight: int
    peak_bytes: int | None = None
    peak_outputs: int | None = None
    peak_receive_buffers: int | None = None


class Timeline(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.timeline"):
    """One step of all ranks; time 0 is the start of the first action; ``source`` is simulated or measured."""

    source: str
    schedule: str
    micro_batches: int
    step_ns: int
    ranks: tuple[RankTimeline, ...]

    def __repr__(self) -> str:
        # Looked up when it is shown: tables are drawn by a room that knows this one.
        return str(import_module("autopipe.reporting.shown").text_of(self))

    def _repr_html_(self) -> str:
        return str(import_module("autopipe.reporting.shown").html_of(self))
