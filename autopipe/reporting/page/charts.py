"""Bars and curves as SVG, with every number in the text beside them too."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH = 240
HEIGHT = 14
CURVE = (560, 240)
MARGIN = (56, 12, 34, 12)  # left, top, bottom, right
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


class Curve(NamedTuple):
    """A named row of points (x, y, text on a pointer), x ascending."""

    name: str
    points: tuple[tuple[float, float, str], ...]


def curves(rows: Sequence[Curve], *, x_name: str, y_name: str, chosen: tuple[float, float]) -> Markup:
    """Return lines over a common pair of axes, told apart by mark and dash, with a ring around what was chosen."""
    width, height = CURVE
    left, top, bottom, right = MARGIN
    xs = [point[0] for row in rows for point in row.points]
    ys = [point[1] for row in rows for point in row.points]
    x_low, x_high, y_high = min(xs), max(xs), max(ys) * 1.05 or 1.0

    def across(x: float) -> float:
        return left + (width - left - right) * ((x - x_low) / (x_high - x_low) if x_high > x_low else 0.5)

    def down(y: float) -> float:
        return height - bottom - (height - top - bottom) * y / y_high

    parts = [
        Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(left, top, height - bottom, width - right),
        *(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{:g}</text>').format(
                across(x), height - bottom + 14, x
            )
            for x in sorted(set(xs))[:: max(1, len(set(xs)) // 12)]
        ),
        *(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{:.3g}</text>').format(
                left - 6, down(y_high * share) + 4, y_high * share
            )
            for share in (0.0, 0.5, 1.0)
        ),
        Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            (left + width - right) / 2, height - 4, x_name
        ),
        Markup('<text class="tick" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
            (top + height - bottom) / 2, y_name
        ),
    ]
    for index, row in enumerate(rows):
        line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y, _ in row.points)
        parts.append(
            Markup('<polyline class="curve" points="{}" stroke-dasharray="{}"/>').format(
                line, DASHES[index % len(DASHES)]
            )
        )
        parts += [_mark(index, across(x), down(y), f"{row.name}: {text}") for x, y, text in row.points]
    ring = Markup('<circle class="chosen" cx="{:.1f}" cy="{:.1f}" r="8"/>').format(across(chosen[0]), down(chosen[1]))
    drawing = Markup(
        '<svg class="curves" viewBox="0 0 {0} {1}" role="img" aria-label="{2} by {3}">{4}{5}</svg>'
    ).format(width, height, y_name, x_name, Markup("").join(parts), ring)
    return drawing + Markup('<ul class="legend">{}</ul>').format(
        Markup("").join(
            Markup('<li><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{}</svg>{}</li>').format(
                _mark(index, 7, 7, row.name), row.name
            )
            for index, row in enumerate(rows)
        )
    )


def _mark(index: int, x: float, y: float, title: str) -> Markup:
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"',
        "square": f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"',
        "triangle": f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"',
        "diamond": f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"',
        "cross": f'<path d="M{x - 4:.1f} {y - 1:.1f}h8v2h-8z"',
    }
    shape = shapes[MARKS[index % len(MARKS)]]
    return Markup(f'{shape} class="mark"><title>{escape(title)}</title></{shape[1:].split()[0]}>')
