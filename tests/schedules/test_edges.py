"""The edges between stages."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.documents.graph import Value
from autopipe.documents.profile import ProfiledValue
from autopipe.schedules.comms import Edge, chain
from autopipe.schedules.edges import stage_edges


def value(producer: int, *consumers: int, requires_grad: bool = True) -> Value:
    return Value(name=f"v{producer}", producer=producer, consumers=consumers, requires_grad=requires_grad)


def test_layers_in_a_row_give_a_chain():
    values = tuple(value(layer, layer + 1) for layer in range(5))
    assert stage_edges(values, (0, 2, 3, 6)) == chain(3)


def test_a_skip_goes_straight_to_its_reader():
    values = (value(0, 1, 3), value(1, 2), value(2, 3))
    assert stage_edges(values, (0, 1, 2, 3, 4)) == (Edge(0, 1), Edge(0, 3), Edge(1, 2), Edge(2, 3))


def test_a_value_inside_one_stage_makes_no_edge():
    assert stage_edges((value(0, 1), value(1, 2)), (0, 3)) == ()


def test_one_value_that_requires_a_gradient_brings_one_back():
    mask, hidden = value(0, 1, requires_grad=False), value(0, 1)
    assert stage_edges((mask,), (0, 1, 2)) == (Edge(0, 1, False),)
    assert stage_edges((mask, hidden), (0, 1, 2)) == (Edge(0, 1, True),)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.sets(st.integers(1, 8), max_size=4), st.booleans()), max_size=8),
    st.sets(st.integers(1, 8), max_size=8),
)
def test_graph_and_profile_values_give_the_same_edges(raw, cuts):
    bounds = (0, *sorted(cuts), 9)
    raw = [(producer, tuple(sorted(c for c in consumers if c > producer)), grad) for producer, consumers, grad in raw]
    graph = tuple(Value(name="x", producer=p, consumers=c, requires_grad=g) for p, c, g in raw)
    profile = tuple(ProfiledValue(name="x", producer=p, consumers=c, requires_grad=g, bytes=()) for p, c, g in raw)
    edges = stage_edges(graph, bounds)
    assert edges == stage_edges(profile, bounds)

    def stage(layer: int) -> int:
        return next(s for s in range(len(bounds) - 1) if bounds[s] <= layer < bounds[s + 1])

    crossing = {(stage(p), stage(c)) for p, consumers, _ in raw for c in consumers if stage(p) != stage(c)}
    assert {(edge.source, edge.target) for edge in edges} == crossing
    assert all(edge.source < edge.target for edge in edges)
