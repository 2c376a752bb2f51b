"""What a rank did when: stamps around every step of its program, read as a `RankTimeline`."""

import time
from collections.abc import Sequence

import msgspec
import torch

from autopipe.documents.timeline import Lane, RankTimeline, Span, Timeline
from autopipe.errors import InputError

Stamp = int | torch.Event


class Record:
    """The stamps of one rank's last step.

    On the CPU a stamp is the monotonic clock; on an accelerator, compute is stamped by events on its
    stream, which cost no synchronisation until `spans` reads them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Forget the last step."""
        self._spans: list[tuple[Lane, str, Stamp, Stamp]] = []
        self._origin_ns = time.perf_counter_ns()
        self._origin = self._event() if self._device.type != "cpu" else None

    def stamp(self, lane: Lane) -> Stamp:
        """Return the time now, as the lane measures it."""
        if self._origin is not None and lane is Lane.COMPUTE:
            return self._event()
        return time.perf_counter_ns()

    def add(self, lane: Lane, label: str, start: Stamp) -> None:
        """Note that ``label`` ran from ``start`` to now."""
        self._spans.append((lane, label, start, self.stamp(lane)))

    def spans(self) -> tuple[Span, ...]:
        """Return the step's spans on the monotonic clock, in nanoseconds; waits for the device."""
        if self._origin is not None:
            torch.accelerator.synchronize(self._device)
        return tuple(
            Span(lane=lane, label=label, start_ns=self._read(start), end_ns=self._read(end))
            for lane, label, start, end in self._spans
        )

    def timeline(self, rank: int, *, peak_in_flight: int, peak_outputs: int, peak_receive_buffers: int) -> RankTimeline:
        """Return the step as a document."""
        return RankTimeline(
            rank=rank,
            spans=self.spans(),
            peak_in_flight=peak_in_flight,
            peak_outputs=peak_outputs,
            peak_receive_buffers=peak_receive_buffers,
        )

    def _event(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def _read(self, stamp: Stamp) -> int:
        if isinstance(stamp, int):
            return stamp
        assert self._origin is not None
        return self._origin_ns + round(self._origin.elapsed_time(stamp) * 1e6)


def joined(rows: Sequence[RankTimeline], *, schedule: str, micro_batches: int) -> Timeline:
    """Return the ranks' stamps as one timeline that begins at the first of them.

    Raises
    ------
    InputError
        If no step has run yet.
    """
    spans = [span for row in rows for span in row.spans]
    if not spans:
        raise InputError("no step has run yet, so there is no timeline: call step first.")
    start = min(span.start_ns for span in spans)
    moved = tuple(
        msgspec.structs.replace(
            row,
            spans=tuple(
                msgspec.structs.replace(span, start_ns=span.start_ns - start, end_ns=span.end_ns - start)
                for span in row.spans
            ),
        )
        for row in rows
    )
    end = max(span.end_ns for row in moved for span in row.spans)
    return Timeline(
        source="measured",
        schedule=schedule,
        micro_batches=micro_batches,
        step_ns=end,
        ranks=moved,
    )
