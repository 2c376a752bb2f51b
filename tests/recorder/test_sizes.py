from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from autopipe.recorder.notes import NOTE, Note
from autopipe.recorder.sizes import Sizes, Symbol

BATCH, LENGTH = 4, 6
SIZES = ((BATCH, LENGTH), (BATCH + 1, LENGTH), (BATCH, LENGTH - 1))


def recorded(shape) -> tuple[fx.Graph, fx.Node, Sizes]:
    """Return a graph of one tensor and one reader of nothing, recorded at three pairs of sizes."""
    graphs = []
    for batch, length in SIZES:
        graph = fx.Graph()
        nodes = [graph.placeholder("x"), graph.call_function(max, (1, 2))]
        nodes[0].meta[NOTE] = Note(owner="", shape=shape(batch, length))
        nodes[1].meta[NOTE] = Note(owner="")
        graphs.append((graph, nodes))
    (graph, nodes), *variants = graphs
    symbols = (
        Symbol(size=BATCH, other=BATCH + 1, variant=0),
        Symbol(size=LENGTH, other=LENGTH - 1, variant=1),
    )
    twins = [dict(zip(nodes, others, strict=True)) for _, others in variants]
    return graph, nodes[1], Sizes(graph, symbols, twins)


def value_of(node: fx.Node | int, batch: int, length: int) -> int:
    """Return what an expression of sizes comes to for a tensor of shape (batch, length, 3)."""
    if not isinstance(node, fx.Node):
        return node
    arguments = [value_of(argument, batch, length) for argument in node.args if node.target != "size"]
    return (batch, length, 3)[node.args[1]] if node.target == "size" else node.target(*arguments)


coefficients = st.integers(-5, 5)


@given(coefficients, coefficients, st.sampled_from([0, 1]))
def test_affine_function_of_one_size_is_found_for_every_value(factor: int, offset: int, of: int) -> None:
    _, reader, sizes = recorded(lambda batch, length: (batch, length, 3))
    trace = tuple(factor * pair[of] + offset for pair in SIZES)
    if len(set(trace)) == 1:
        return
    node = sizes.integer(reader, trace)
    assert node is not None
    for batch, length in ((1, 1), (2, 9), (7, 3)):
        assert value_of(node, batch, length) == factor * (batch, length)[of] + offset


@given(st.integers(1, 9))
def test_multiple_of_both_sizes_is_found_for_every_value(factor: int) -> None:
    _, reader, sizes = recorded(lambda batch, length: (batch, length, 3))
    node = sizes.integer(reader, tuple(factor * batch * length for batch, length in SIZES))
    assert node is not None
    for batch, length in ((1, 1), (2, 9), (7, 3)):
        assert value_of(node, batch, length) == factor * batch * length


@given(st.integers(1, 9))
def test_other_function_of_both_sizes_is_not_guessed(extra: int) -> None:
    _, reader, sizes = recorded(lambda batch, length: (batch, length, 3))
    assert sizes.integer(reader, tuple(batch * length + extra for batch, length in SIZES)) is None


def test_size_is_read_from_what_the_reader_reads_where_that_has_it() -> None:
    graph, reader, sizes = recorded(lambda batch, length: (batch * length, 3))
    reader.args = (next(iter(graph.nodes)), 1)
    node = sizes.integer(reader, tuple(batch * length for batch, length in SIZES))
    assert (node.target, node.args[1]) == ("size", 0)


@given(st.integers(1, 50))
def test_number_inverse_to_a_size_is_found(whole: int) -> None:
    _, reader, sizes = recorded(lambda batch, length: (batch, length, 3))
    node = sizes.inverse(reader, tuple(whole / batch for batch, _ in SIZES))
    assert node is None or node.args[0] == whole


@given(st.sampled_from([0.1, 1.5, 2.0, 7.0, 5**0.5]))
def test_float_proportional_to_a_size_is_found(factor: float) -> None:
    _, reader, sizes = recorded(lambda batch, length: (batch, length, 3))
    node = sizes.proportional(reader, tuple(factor * batch for batch, _ in SIZES))
    assert node is not None
    for batch in (1, 3, 10):
        assert value_of(node, batch, 5) == factor * batch


def test_float_that_is_a_sum_of_sizes_is_not_guessed() -> None:
    _, reader, sizes = recorded(lambda batch, length: (batch, length, 3))
    assert sizes.proportional(reader, tuple(batch + length + 0.5 for batch, length in SIZES)) is None
