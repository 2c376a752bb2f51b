"""The table of a recorded model: golden text, and a column that adds up."""

import msgspec

from autopipe.reporting.graph_table import graph_report, rows
from autopipe.reporting.text import as_text
from tests.conftest import Golden
from tests.reporting import graphs


def test_report_looks_as_it_should(golden: Golden) -> None:
    reason = (
        "module `blocks.0` (Block) at model.py:3 in `x.sum() > 0`: Tensor.__bool__ hands a tensor's values to Python"
    )
    golden.check("graph.txt", as_text(graph_report(graphs.graph(), whole={"blocks.0": reason, "blocks.1": reason})))


def test_report_says_what_was_not_compared_and_what_is_fixed() -> None:
    graph = msgspec.structs.replace(graphs.graph(), batch_is_free=False)
    text = as_text(graph_report(graph, unchecked="not asked for"), width=200)
    assert "Not compared with the model: not asked for." in text
    assert "The batch size is as in the example" in text


def test_state_adds_up_to_that_of_the_model_although_some_is_tied() -> None:
    graph = graphs.graph()
    assert sum(row.state_bytes for row in rows(graph)) == sum(parameter.bytes for parameter in graph.parameters)


def test_layers_that_are_alike_share_a_row() -> None:
    assert [(row.first, row.last) for row in rows(graphs.graph())] == [(0, 0), (1, 2), (3, 3), (4, 4)]
