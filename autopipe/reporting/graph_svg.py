"""A recorded model as a picture: a box for each layer, a line for each legal cut, an arc for what skips layers."""

from html import escape

from autopipe.documents.graph import Graph, Value
from autopipe.reporting.colours import stage_colour
from autopipe.reporting.crossings import Crossing, crossings
from autopipe.units import format_bytes

ROW = 34
BOX = 20
LEFT = 16
WIDEST = 320
LABEL = LEFT + WIDEST + 12
REACH = 160
CHARACTER = 6.4


def graph_svg(graph: Graph) -> str:
    """Return an SVG document of the layers of ``graph``, the first on top.

    A box is as wide as its layer has parameters, and layers that are alike have one colour. Between two boxes a line
    with the bytes that cross marks a legal cut; a dashed red one, with its reason as tooltip, a forbidden place.
    Arcs to the right are values that are read beyond the next layer, from a dot at the layer that makes one to dots
    at those that read it, in its maker's colour.
    """
    sizes = {parameter.name: parameter.bytes for parameter in graph.parameters}
    weights = [sum(sizes.get(name, 0) for name in layer.parameters) for layer in graph.layers]
    largest = max((*weights, 1))
    labels = [
        f"{index}  {layer.name} ({layer.kind}), {format_bytes(weight)}"
        for index, (layer, weight) in enumerate(zip(graph.layers, weights, strict=True))
    ]
    arcs = LABEL + round(CHARACTER * max(map(len, labels), default=0)) + 8
    skips = [value for value in graph.values if value.consumers[-1] > value.producer + 1]
    parts = [
        _box(index, label, layer.group, weight, largest)
        for index, (label, layer, weight) in enumerate(zip(labels, graph.layers, weights, strict=True))
    ]
    parts += [_cut(place) for place in crossings(graph)]
    parts += [_skip(value, arcs, len(graph.layers), graph.layers[value.producer].group) for value in skips]
    height = ROW * len(graph.layers) + ROW
    width = arcs + REACH + round(CHARACTER * max((len(value.name) for value in skips), default=0)) + LEFT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="11">',
            f"<title>{escape(graph.model)}: layers and legal cuts</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        )
    )


def _top(index: int) -> int:
    return ROW // 2 + ROW * index


def _box(index: int, label: str, group: int, weight: int, largest: int) -> str:
    width = max(round(WIDEST * weight / largest), 4)
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


def _skip(value: Value, arcs: int, layers: int, group: int) -> str:
    """Return one arc to each layer beyond the next that reads ``value``, its name beside the widest."""
    begin, colour = _top(value.producer) + BOX - 4, stage_colour(group)
    readers = [consumer for consumer in value.consumers if consumer > value.producer + 1]
    parts = [f'<circle cx="{arcs}" cy="{begin}" r="2.5" fill="{colour}"/>']
    for consumer in readers:
        # A cubic whose two middle points stand at ``reach`` bends three quarters of the way there.
        end, reach = _top(consumer) + 4, arcs + round(REACH * 4 / 3 * (consumer - value.producer) / max(layers, 2))
        parts.append(
            f'<path class="skip" d="M {arcs} {begin} C {reach} {begin}, {reach} {end}, {arcs} {end}" fill="none" '
            f'stroke="{colour}"><title>{escape(value.name)}</title></path>'
            f'<circle cx="{arcs}" cy="{end}" r="2.5" fill="{colour}"/>'
        )
    x, y = arcs + (reach - arcs) * 3 // 4 + 5, (begin + end) // 2 + 3
    return "".join((*parts, f'<text x="{x}" y="{y}" fill="#666666" font-size="9">{escape(value.name)}</text>'))
