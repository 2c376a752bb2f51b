"""The graph of a plan from top to bottom: boxes in their stage's colour, what crosses each cut, arcs for what skips."""

from collections.abc import Sequence

from markupsafe import Markup

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.reporting.colours import stage_colour
from autopipe.reporting.crossings import Crossing, crossings
from autopipe.units import format_bytes

ROW = 16
CUT = 20
BOX = 26
NAME = 34
ARCS = 330
REACH = 90
LONGEST = 44


def layer_map(plan: Plan, graph: Graph) -> Markup:
    """Return the picture of all layers and cuts; arcs are values that skip layers and cross a cut."""
    owner = [index for index, stage in enumerate(plan.stages) for _ in range(stage.begin, stage.end)]
    parts = [_layer(index, graph, owner[index]) for index in range(len(graph.layers))]
    places = {place.position: place for place in crossings(graph)}
    parts += [_cut(stage, places[cut.begin]) for stage, cut in enumerate(plan.stages[1:])]
    parts += _arcs(graph, owner)
    return Markup(
        '<svg class="layers" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">{3}</svg>'
    ).format(
        ARCS + REACH,
        _top(len(graph.layers) - 1, owner) + ROW,
        f"{len(graph.layers)} layers in {len(plan.stages)} stages",
        Markup("").join(parts),
    )


def _top(layer: int, owner: Sequence[int]) -> int:
    """Return where a layer's row begins: each cut above it takes some room for its words."""
    return ROW * layer + CUT * owner[layer]


def _layer(index: int, graph: Graph, stage: int) -> Markup:
    layer = graph.layers[index]
    y = ROW * index + CUT * stage
    return Markup(
        '<rect class="layer" x="0" y="{}" width="{}" height="{}" style="color:{}"/>'
        '<text x="{}" y="{}">{}<title>{}</title></text>'
    ).format(
        y + 2,
        BOX,
        ROW - 4,
        stage_colour(stage),
        NAME,
        y + 12,
        _short(layer.name),
        f"layer {index}: {layer.name} ({layer.kind}), stage {stage}",
    )


def _cut(stage: int, place: Crossing) -> Markup:
    count = f"{len(place.values)} value{'' if len(place.values) == 1 else 's'}"
    y = ROW * place.position + CUT * stage
    return Markup(
        '<line class="cut" x1="0" x2="{0}" y1="{1}" y2="{1}"/><text class="crossing" x="{2}" y="{3}">{4}</text>'
    ).format(
        ARCS - 8,
        y + 4,
        NAME,
        y + 16,
        f"stage {stage} to {stage + 1}: {count}, {format_bytes(place.bytes)} for the example",
    )


def _arcs(graph: Graph, owner: Sequence[int]) -> list[Markup]:
    parts = []
    for value in (value for value in graph.values if not value.is_rebuilt):
        last = value.consumers[-1]
        if last > value.producer + 1 and owner[last] != owner[value.producer] and value.shape is not None:
            begin, end = _top(value.producer, owner) + 12, _top(last, owner) + 4
            reach = ARCS + min(REACH - 4, 14 + 2 * (last - value.producer))
            parts.append(
                Markup('<path class="skip" d="M{0} {1}C{2} {1},{2} {3},{0} {3}"><title>{4}</title></path>').format(
                    ARCS, begin, reach, end, f"{value.name}: layer {value.producer} to {last}"
                )
            )
    return parts


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-LONGEST // 2 + 1 :]}"
