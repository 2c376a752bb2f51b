"""The stages are imported as they were written, and compute what the model computes."""

import copy
import importlib
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from autopipe.cli.export import write_files
from autopipe.errors import DocumentError
from autopipe.exporters.stage_code import stage_files
from autopipe.recorder import record
from autopipe.stages.split import pieces
from tests.exporters.plans import planned
from tests.models import JOBS
from tests.reference import even_bounds


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "written"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", JOBS)
def test_they_share_the_models_state_by_its_names_and_give_its_gradients(importable: Path, name: str) -> None:
    torch.manual_seed(3)
    job = JOBS[name]
    model, (x, y) = job.build(), job.draw(4)
    plain = copy.deepcopy(model)
    graph = record(model, (x,)).graph
    plan = planned(graph, even_bounds(len(graph.layers), 3))
    write_files(stage_files(plan, graph), importable / "written")
    package = importlib.import_module("written")
    stages = package.split(model)

    known: dict[str, torch.Tensor] = {}
    for stage, piece in zip(stages, pieces(graph, (0, *(stage.end for stage in plan.stages))), strict=True):
        names = sys.modules[f"written.stage_{piece.index}"].STATE
        assert set(stage.state_dict()) == set(names).intersection(model.state_dict())
        made = stage(*(known[name] for name in piece.inputs)) if piece.index else stage(x)
        if not piece.is_last:
            known.update(zip(piece.outputs, made, strict=True))
    job.loss(made, y).backward()
    job.loss(plain(x), y).backward()
    for (key, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), key


def test_a_name_that_is_code_is_refused() -> None:
    graph = record(JOBS["mlp"].build(), (JOBS["mlp"].draw(4)[0],)).graph
    nodes = list(graph.nodes)
    at = next(index for index, node in enumerate(nodes) if node.op == "call_module")
    nodes[at] = msgspec.structs.replace(nodes[at], target='0"]); print("')
    damaged = msgspec.structs.replace(graph, nodes=tuple(nodes))
    with pytest.raises(DocumentError, match="is no name"):
        stage_files(planned(graph, (0, len(graph.layers))), damaged)


def test_a_hugging_face_model_is_written_too(importable: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(3)
    config = T5Config(
        d_model=32,
        d_ff=64,
        d_kv=8,
        num_layers=2,
        num_heads=4,
        vocab_size=97,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model, ids = T5ForConditionalGeneration(config), torch.randint(97, (4, 8))
    plain = copy.deepcopy(model)
    graph = record(model, (), {"input_ids": ids, "labels": ids}).graph
    bounds = even_bounds(len(graph.layers), 3)
    write_files(stage_files(planned(graph, bounds), graph), importable / "written")
    known: dict[str, object] = {"input_ids": ids, "labels": ids}
    for stage, piece in zip(importlib.import_module("written").split(model), pieces(graph, bounds), strict=True):
        inputs = [known[name] for name in (piece.inputs or ("input_ids", "labels"))]
        made = stage(**dict(zip(("input_ids", "labels"), inputs, strict=True))) if not piece.index else stage(*inputs)
        if not piece.is_last:
            known.update(zip(piece.outputs, made, strict=True))
    assert made.loss.equal(plain(input_ids=ids, labels=ids).loss)
