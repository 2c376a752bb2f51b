"""The graph of a plan from top to bottom: boxes in their stage's colour, and what crosses each cut."""

from markupsafe import Markup

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.reporting.colours import stage_colour
from autopipe.units import format_bytes

ROW = 16
LEFT = 10
BOX = 26
WIDTH = 640
ARCS = 560


def layer_map(plan: Plan, graph: Graph) -> Markup:
    """Return the picture of all layers and cuts; arcs are values that skip layers and cross a cut."""
    owner = [index for index, stage in enumerate(plan.stages) for _ in range(stage.begin, stage.end)]
    parts = []
    for index, layer in enumerate(graph.layers):
        parts.append(
            Markup(
                '<rect class="layer" x="{}" y="{}" width="{}" height="{}" style="color:{}"/>'
                '<text x="{}" y="{}">{}<title>{}</title></text>'
            ).format(
                LEFT,
                ROW * index + 2,
                BOX,
                ROW - 4,
                stage_colour(owner[index]),
                LEFT + BOX + 8,
                ROW * index + 12,
                _short(layer.name),
                f"layer {index}: {layer.name} ({layer.kind}), stage {owner[index]}",
            )
        )
    for stage, cut in enumerate(plan.stages[1:]):
        crossing = [
            value
            for value in graph.values
            if not value.is_rebuilt and value.producer < cut.begin <= value.consumers[-1]
        ]
        size = sum(value.bytes for value in crossing)
        parts.append(
            Markup(
                '<line class="cut" x1="0" x2="{}" y1="{}" y2="{}"/><text class="crossing" x="{}" y="{}">{}</text>'
            ).format(
                WIDTH,
                ROW * cut.begin,
                ROW * cut.begin,
                WIDTH - 6,
                ROW * cut.begin - 3,
                f"stage {stage} | {stage + 1}: {len(crossing)} values, {format_bytes(size)} for the example",
            )
        )
    for value in graph.values:
        last = value.consumers[-1]
        if last > value.producer + 1 and owner[last] != owner[value.producer] and value.shape is not None:
            begin, end = ROW * value.producer + 12, ROW * last + 4
            reach = ARCS + min(60, 8 + 2 * (last - value.producer))
            parts.append(
                Markup('<path class="skip" d="M{0} {1}C{2} {1},{2} {3},{0} {3}"><title>{4}</title></path>').format(
                    ARCS, begin, reach, end, f"{value.name}: layer {value.producer} to {last}"
                )
            )
    height = ROW * len(graph.layers)
    return Markup('<svg class="layers" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">{2}</svg>').format(
        WIDTH, height, Markup("").join(parts)
    )


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 + 1 :]}"
