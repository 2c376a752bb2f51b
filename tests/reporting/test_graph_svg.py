from xml.etree import ElementTree

from autopipe.reporting.colours import stage_colour
from autopipe.reporting.graph_svg import graph_svg
from tests.reporting import graphs


def elements(kind: str) -> list[ElementTree.Element]:
    return [part for part in ElementTree.fromstring(graph_svg(graphs.graph())).iter() if part.get("class") == kind]


def test_every_layer_is_a_box_and_those_alike_have_one_colour() -> None:
    colours = [box.get("fill") for box in elements("layer")]
    assert colours == [stage_colour(group) for group in (0, 1, 1, 2, 3)]


def test_every_place_is_a_legal_cut_or_a_forbidden_one_with_its_reason() -> None:
    assert len(elements("cut")) == 3
    (forbidden,) = elements("forbidden")
    assert "".join(forbidden.itertext()) == "`norm.mean` is written & read"


def test_what_skips_layers_is_an_arc() -> None:
    (arc,) = elements("skip")
    assert "".join(arc.itertext()) == "ids"


def test_boxes_lie_below_each_other_in_order() -> None:
    tops = [int(box.get("y", "")) for box in elements("layer")]
    assert tops == sorted(set(tops))
