"""Bars and curves as SVG, with every number in the text beside them too."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH = 240
HEIGHT = 14
CURVE = (560, 240)
MARGIN = (60, 12, 38, 12)  # left, top, bottom, right
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4")
MARKS = ("circle", "square", "triangle", "diamond", "cross")


class Part(NamedTuple):
    """A part of a bar: how much, in the chart's own unit, its style's name, its text on a pointer."""

    amount: int
    style: str
    title: str


def bar(parts: Sequence[Part], whole: int, *, limit: int | None = None, colour: str = "") -> Markup:
    """Return a stacked bar, full at ``whole``, with a line at ``limit``."""
    scale = WIDTH / max(whole, 1)
    x, drawn = 0.0, []
    for part in parts:
        width = part.amount * scale
        drawn.append(
            Markup('<rect class="{}" x="{:.1f}" y="1" width="{:.1f}" height="{}"{}><title>{}</title></rect>').format(
                part.style,
                x,
                width,
                HEIGHT - 2,
                Markup(' style="color:{}"').format(colour) if colour else "",
                part.title,
            )
        )
        x += width
    if limit is not None:
        at = min(limit * scale, WIDTH - 1.0)
        drawn.append(Markup('<line class="limit" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"/>').format(at, HEIGHT))
    return Markup(
        '<svg class="bar" viewBox="0 0 {0} {1}" width="{0}" height="{1}" aria-hidden="true">{2}</svg>'
    ).format(WIDTH, HEIGHT, Markup("").join(drawn))


class Point(NamedTuple):
    """A point of a curve: its place, its text on a pointer, and whether it is solid or hollow."""

    x: float
    y: float
    text: str
    solid: bool = True


class Curve(NamedTuple):
    """A named row of points, x ascending and positive."""

    name: str
    points: tuple[Point, ...]


def curves(
    rows: Sequence[Curve], *, x_name: str, y_name: str, chosen: tuple[float, float], limit: float | None = None
) -> Markup:
    """Return lines over a common pair of axes, told apart by mark and dash, with a ring around what was chosen.

    The horizontal axis is logarithmic. A line marks the ``limit`` of y.
    """
    width, height = CURVE
    left, top, bottom, right = MARGIN
    xs = sorted({point.x for row in rows for point in row.points})
    y_high = max((point.y for row in rows for point in row.points), default=0.0)
    y_high = max(y_high, chosen[1], limit or 0.0) * 1.05 or 1.0
    low, high = math.log2(xs[0]), math.log2(xs[-1])

    def across(x: float) -> float:
        return left + 10 + (width - left - right - 20) * ((math.log2(x) - low) / (high - low) if high > low else 0.5)

    def down(y: float) -> float:
        return height - bottom - (height - top - bottom) * y / y_high

    frame = (left, top, width - right, height - bottom)
    parts = [*_axes(frame, x_name, y_name), *_ticks(frame, [(x, across(x)) for x in xs], y_high)]
    if limit is not None:
        parts.append(
            Markup('<path class="limit" d="M{} {:.1f}H{}"><title>limit</title></path>').format(
                left, down(limit), width - right
            )
        )
    for index, row in enumerate(rows):
        line = " ".join(f"{across(point.x):.1f},{down(point.y):.1f}" for point in row.points)
        dash = DASHES[index % len(DASHES)]
        parts.append(Markup('<polyline class="curve" points="{}" stroke-dasharray="{}"/>').format(line, dash))
        parts += [_mark(index, across(point.x), down(point.y), point.text, point.solid) for point in row.points]
    parts.append(
        Markup('<circle class="chosen" cx="{:.1f}" cy="{:.1f}" r="8"/>').format(across(chosen[0]), down(chosen[1]))
    )
    drawing = Markup('<svg class="curves" viewBox="0 0 {0} {1}" role="img" aria-label="{2} by {3}">{4}</svg>').format(
        width, height, y_name, x_name, Markup("").join(parts)
    )
    return drawing + _legend(rows)


def _axes(frame: tuple[int, int, int, int], x_name: str, y_name: str) -> list[Markup]:
    left, top, right, bottom = frame
    return [
        Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(left, top, bottom, right),
        Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            (left + right) / 2, bottom + 32, x_name
        ),
        Markup('<text class="tick" transform="translate(13 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
            (top + bottom) / 2, y_name
        ),
    ]


def _ticks(frame: tuple[int, int, int, int], xs: Sequence[tuple[float, float]], y_high: float) -> list[Markup]:
    """Return figures along the axes: those of x as far as they do not run into each other, three of y."""
    left, top, _, bottom = frame
    parts, end = [], -math.inf
    for x, at in xs:
        text = f"{x:g}"
        half = 3.6 * len(text)
        if at - half < end + 6:
            continue
        end = at + half
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(at, bottom + 15, text)
        )
    for share in (0.0, 0.5, 1.0):
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{:.3g}</text>').format(
                left - 6, bottom - (bottom - top) * share + 4, y_high * share
            )
        )
    return parts


def _legend(rows: Sequence[Curve]) -> Markup:
    return Markup('<ul class="legend">{}</ul>').format(
        Markup("").join(
            Markup('<li><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{}</svg>{}</li>').format(
                _mark(index, 7, 7, row.name, True), row.name
            )
            for index, row in enumerate(rows)
        )
    )


def _mark(index: int, x: float, y: float, title: str, solid: bool) -> Markup:
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"',
        "square": f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"',
        "triangle": f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"',
        "diamond": f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"',
        "cross": f'<path d="M{x - 4:.1f} {y - 1:.1f}h8v2h-8z"',
    }
    shape = shapes[MARKS[index % len(MARKS)]]
    kind = "mark" if solid else "mark hollow"
    return Markup(f'{shape} class="{kind}"><title>{escape(title)}</title></{shape[1:].split()[0]}>')
