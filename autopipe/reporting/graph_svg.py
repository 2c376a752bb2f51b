"""A recorded model as a picture: a box for each layer, a line for each legal cut, an arc for what skips layers."""

from html import escape

from autopipe.documents.graph import Graph
from autopipe.reporting.colours import stage_colour
from autopipe.reporting.crossings import Crossing, crossings
from autopipe.units import format_bytes

ROW = 34
BOX = 20
LEFT = 16
WIDEST = 320
LABEL = LEFT + WIDEST + 12
ARCS = 640
WIDTH = 820


def graph_svg(graph: Graph) -> str:
    """Return an SVG document of the layers of ``graph``, the first on top.

    A box is as wide as its layer has parameters, and layers that are alike have one colour. Between two boxes a line
    with the bytes that cross marks a legal cut; a dashed red one, with its reason as tooltip, a forbidden place.
    Arcs to the right are values that are read beyond the next layer.
    """
    sizes = {parameter.name: parameter.bytes for parameter in graph.parameters}
    weights = [sum(sizes.get(name, 0) for name in layer.parameters) for layer in graph.layers]
    largest = max((*weights, 1))
    parts = [
        _box(index, layer.name, layer.kind, layer.group, weight, largest)
        for index, (layer, weight) in enumerate(zip(graph.layers, weights, strict=True))
    ]
    parts += [_cut(place) for place in crossings(graph)]
    parts += [
        _arc(value.name, value.producer, consumer, len(graph.layers))
        for value in graph.values
        for consumer in value.consumers
        if consumer > value.producer + 1
    ]
    height = ROW * len(graph.layers) + ROW
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'font-family="sans-serif" font-size="11">',
            f"<title>{escape(graph.model)}: layers and legal cuts</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        )
    )


def _top(index: int) -> int:
    return ROW // 2 + ROW * index


def _box(index: int, name: str, kind: str, group: int, weight: int, largest: int) -> str:
    width = max(round(WIDEST * weight / largest), 4)
    label = f"{index}  {name} ({kind}), {format_bytes(weight)}"
    return (
        f'<rect class="layer" x="{LEFT}" y="{_top(index)}" width="{width}" height="{BOX}" rx="3" '
        f'fill="{stage_colour(group)}"/>'
        f'<text x="{LABEL}" y="{_top(index) + BOX - 6}">{escape(label)}</text>'
    )


def _cut(place: Crossing) -> str:
    y = _top(place.position) - (ROW - BOX) // 2
    if place.forbidden is not None:
        return (
            f'<line class="forbidden" x1="{LEFT}" x2="{LABEL - 12}" y1="{y}" y2="{y}" stroke="#c03030" '
            f'stroke-dasharray="4 3"><title>{escape(place.forbidden)}</title></line>'
        )
    return (
        f'<line class="cut" x1="{LEFT}" x2="{LABEL - 12}" y1="{y}" y2="{y}" stroke="#666666"/>'
        f'<text x="{LABEL}" y="{y + 3}" fill="#666666" font-size="9">{format_bytes(place.bytes)}</text>'
    )


def _arc(name: str, producer: int, consumer: int, layers: int) -> str:
    begin, end = _top(producer) + BOX, _top(consumer)
    reach = ARCS + round((WIDTH - ARCS - LEFT) * (consumer - producer) / max(layers, 2))
    return (
        f'<path class="skip" d="M {ARCS} {begin} C {reach} {begin}, {reach} {end}, {ARCS} {end}" fill="none" '
        f'stroke="#999999"><title>{escape(name)}</title></path>'
    )
