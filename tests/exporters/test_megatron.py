import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.exporters.export import Export
from autopipe.exporters.megatron import layout, megatron
from tests.exporters.plans import at_blocks, planned

STAGES = st.lists(st.integers(0, 5), min_size=1, max_size=12).map(
    lambda counts: ["E" * (i == 0) + "t" * n + "L" * (i == len(counts) - 1) for i, n in enumerate(counts)]
)


def expand(text: str) -> list[str]:
    """The published grammar: commas are nothing, (...)*n and x*n repeat, | separates stages."""
    text = text.replace(",", "")
    while "(" in text:
        text = re.sub(r"\(([^()]*)\)\*([0-9]+)", lambda m: m[1] * int(m[2]), text)
    return re.sub(r"([EtmL])\*([0-9]+)", lambda m: m[1] * int(m[2]), text).split("|")


@given(STAGES)
def test_the_layout_says_every_stage(stages: list[str]) -> None:
    assert expand(layout(stages)) == stages


def flag(export: Export, name: str) -> str:
    found = re.search(rf'--{name} "?([^"\n]*)', export.files[0].text)
    assert found is not None, name
    return found[1]


def test_an_uneven_plan_is_a_layout_string(gpt: Graph) -> None:
    export = megatron(planned(gpt, at_blocks(gpt, "blocks.3")), gpt)
    assert expand(flag(export, "pipeline-model-parallel-layout")) == ["Ettt", "tL"]
    assert flag(export, "pipeline-model-parallel-size") == "2"
    assert (flag(export, "micro-batch-size"), flag(export, "global-batch-size")) == ("2", "8")


def test_virtual_stages_follow_one_another_in_the_order_of_the_forward(gpt: Graph) -> None:
    bounds = at_blocks(gpt, "blocks.1", "blocks.2", "blocks.3")
    export = megatron(planned(gpt, bounds, schedule="interleaved", virtual_stages=2), gpt)
    assert expand(flag(export, "pipeline-model-parallel-layout")) == ["Et", "t", "t", "tL"]
    assert flag(export, "pipeline-model-parallel-size") == "2"


def test_alike_middle_stages_have_the_older_flags_too(gpt: Graph) -> None:
    export = megatron(planned(gpt, at_blocks(gpt, "blocks.2", "blocks.3")), gpt)
    assert any("--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 1" in n for n in export.notes)


def test_tied_weights_and_recomputed_blocks_are_said(gpt: Graph) -> None:
    export = megatron(planned(gpt, at_blocks(gpt, "blocks.2"), recompute=("blocks.0.up", "blocks.1.up")), gpt)
    assert flag(export, "recompute-num-layers") == "2"
    assert any("--untie-embeddings" in note for note in export.notes)


def test_a_cut_inside_a_block_needs_the_profile(gpt: Graph) -> None:
    inside = at_blocks(gpt, "blocks.1")[1] + 2
    with pytest.raises(InputError, match=r"cuts inside a block, before blocks\.1\.up.*--profile"):
        megatron(planned(gpt, (0, inside, len(gpt.layers))), gpt)


def test_a_cut_between_the_embeddings_needs_the_profile(gpt: Graph) -> None:
    with pytest.raises(InputError, match="--profile"):
        megatron(planned(gpt, (0, 1, len(gpt.layers))), gpt)
