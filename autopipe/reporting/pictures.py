"""Timeline and memory as pictures for papers, drawn by matplotlib: SVG, PNG or PDF, readable without colour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Lane, RankTimeline, Timeline
from autopipe.errors import InputError
from autopipe.reporting.colours import stage_colour
from autopipe.schedules.action import Action, Op
from autopipe.units import byte_scale, format_bytes, time_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
WIDTH_IN = 7.0
DOTS = 300
MOST_VECTORS = 4_000
FAR = 4
LABEL_IN = 0.06
_OPTIMIZER = "#1d2430"
_STATE, _ACTIVATIONS = "#4c7fb8", "#b5cbe2"
_STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "font.family": "sans-serif",
    "svg.hashsalt": "autopipe",
    "svg.fonttype": "none",
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class _Look(NamedTuple):
    name: str
    alpha: float
    hatch: str | None


_LOOKS = {
    Op.FORWARD: _Look("forward", 0.4, None),
    Op.BACKWARD: _Look("backward", 1.0, None),
    Op.INPUT_GRAD: _Look("input gradient", 0.75, None),
    Op.WEIGHT_GRAD: _Look("weight gradient", 0.25, "//////"),
}


def timeline_picture(timelines: Sequence[tuple[str, Timeline]], *, format: str = "svg") -> bytes:
    """Return one step of each named timeline, one above the other over the same axis of time.

    Parameters
    ----------
    timelines : sequence of (str, Timeline)
        For example predicted and measured.
    format : {"svg", "png", "pdf"}

    Returns
    -------
    bytes
        The same for equal timelines. Above 4,000 actions an SVG or PDF holds the bars as an image of 300 dots an inch.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    with _styled():
        from matplotlib.figure import Figure

        rows = [len(timeline.ranks) for _, timeline in timelines]
        height = sum(min(0.24, 6 / count) * count + 0.75 for count in rows)
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        axes = figure.subplots(len(timelines), 1, squeeze=False, sharex=True, height_ratios=[n + 2 for n in rows])[:, 0]
        end = max(timeline.step_ns for _, timeline in timelines)
        for place, (name, timeline) in zip(axes, timelines, strict=True):
            _draw(place, name, timeline, end)
        scale = time_scale(end)
        axes[-1].set_xlabel(f"time, {scale.unit}")
        _explain(figure, timelines)
        return _written(figure, format)


def memory_picture(plan: Plan, measured: Timeline | None = None, *, format: str = "svg") -> bytes:
    """Return each rank's predicted peak, what stays and what comes and goes, with its limit and the measured peak.

    Parameters
    ----------
    measured : Timeline, optional
        With peaks.
    format : {"svg", "png", "pdf"}

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    with _styled():
        from matplotlib.figure import Figure

        ranks = range(len(plan.ranks))
        peaks = [rank.peak_bytes for rank in plan.ranks]
        states = [sum(stage.state_bytes for stage in plan.stages if stage.rank == rank) for rank in ranks]
        scale = byte_scale(max(peaks))
        held = [min(state, peak) / scale.size for state, peak in zip(states, peaks, strict=True)]
        figure = Figure(
            figsize=(WIDTH_IN, max(1.6, min(0.24, 6 / len(peaks)) * len(peaks) + 1.1)), layout="constrained"
        )
        axes = figure.subplots()
        axes.barh(ranks, held, color=_STATE, label="parameters, gradients, optimizer, buffers")
        rest = [peak / scale.size - base for peak, base in zip(peaks, held, strict=True)]
        bars: dict[str, Any] = {"color": _ACTIVATIONS, "hatch": "....", "edgecolor": "white", "linewidth": 0}
        axes.barh(ranks, rest, left=held, label="activations and what travels", **bars)
        limits = [rank.memory_limit_bytes for rank in plan.ranks]
        least = min((limit for limit in limits if limit is not None), default=0)
        if least <= FAR * max(peaks):
            _lines(axes, limits, scale.size, "limit", color="#c03030")
        found = [None] * len(peaks) if measured is None else [rank.peak_bytes for rank in measured.ranks]
        _lines(axes, found, scale.size, "measured peak", color="black", linestyle=":")
        _by_rank(axes, len(peaks))
        far = f" (the limit is {format_bytes(least)})" if least > FAR * max(peaks) else ""
        axes.set_xlabel(f"peak memory, {scale.unit}{far}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return _written(figure, format)


def _styled() -> AbstractContextManager[Any]:
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "pictures are drawn by matplotlib, which is not installed: pip install 'torch-autopipe[pictures]', or "
            "write a page, -o report.html."
        ) from None
    return matplotlib.rc_context(_STYLE)


def _draw(axes: Axes, name: str, timeline: Timeline, end_ns: int) -> None:
    """Draw every rank's actions, a bar for each, in its stage's colour and its kind's shade."""
    size = time_scale(end_ns).size
    count = sum(len(rank.spans) for rank in timeline.ranks)
    for rank in timeline.ranks:
        bars: dict[tuple[Op | None, int], list[tuple[float, float]]] = {}
        for span in rank.spans:
            if span.lane in (Lane.COMPUTE, Lane.OPTIMIZER):
                action = Action.parse(span.label) if span.lane is Lane.COMPUTE else None
                key = (None, 0) if action is None else (action.op, action.stage)
                bars.setdefault(key, []).append((span.start_ns / size, (span.end_ns - span.start_ns) / size))
        for (op, stage), spans in bars.items():
            look = _Look("optimizer", 1.0, None) if op is None else _LOOKS[op]
            colour = _OPTIMIZER if op is None else stage_colour(stage)
            rows = (rank.rank - 0.42, 0.84)
            fill: dict[str, Any] = {
                "facecolor": (colour, look.alpha),
                "edgecolor": "white" if look.hatch is None else colour,
            }
            dense = count > MOST_VECTORS
            axes.broken_barh(spans, rows, hatch=look.hatch, linewidth=0 if dense else 0.3, rasterized=dense, **fill)
        if count <= MOST_VECTORS:
            _number(axes, rank, end_ns)
    axes.set_xlim(0, end_ns / size)
    axes.set_title(name, loc="left", fontsize=8)
    _by_rank(axes, len(timeline.ranks))


def _number(axes: Axes, rank: RankTimeline, end_ns: int) -> None:
    """Write the micro-batch into every bar that is wide enough."""
    size, inches = time_scale(end_ns).size, (WIDTH_IN - 0.8) / end_ns
    for span in rank.spans:
        if span.lane is not Lane.COMPUTE:
            continue
        text = str(Action.parse(span.label).micro_batch)
        if (span.end_ns - span.start_ns) * inches >= LABEL_IN * (len(text) + 0.5):
            middle = (span.start_ns + span.end_ns) / 2 / size
            axes.text(middle, rank.rank, text, ha="center", va="center_baseline", fontsize=6, clip_on=True)


def _by_rank(axes: Axes, count: int) -> None:
    """Give the vertical axis ranks, the first on top, as many as can be read."""
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_yticks(range(0, count, max(1, count // 16)))
    axes.set_ylabel("rank")


def _lines(axes: Axes, sizes: Sequence[int | None], unit: int, label: str, **style: Any) -> None:
    """Draw a short line across each rank's bar at its size, one legend entry for all."""
    for rank, size in enumerate(sizes):
        if size is not None:
            axes.plot([size / unit] * 2, [rank - 0.45, rank + 0.45], label=label, **style)
            label = "_nolegend_"


def _explain(figure: Figure, timelines: Sequence[tuple[str, Timeline]]) -> None:
    """Put the kinds that occur below the picture."""
    from matplotlib.patches import Patch

    labels = {span.label for _, timeline in timelines for rank in timeline.ranks for span in rank.spans}
    letters = {label[:1] for label in labels}
    colour = stage_colour(0)
    entries = [
        Patch(facecolor=(colour, look.alpha), edgecolor=colour, hatch=look.hatch, label=look.name, linewidth=0.3)
        for op, look in _LOOKS.items()
        if str(op) in letters
    ]
    if any(span.lane is Lane.OPTIMIZER for _, timeline in timelines for rank in timeline.ranks for span in rank.spans):
        entries.append(Patch(facecolor=_OPTIMIZER, label="optimizer"))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries), frameon=False)


def _written(figure: Figure, format: str) -> bytes:
    file = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format)
    figure.savefig(file, format=format, dpi=DOTS, metadata=undated)
    return file.getvalue()
