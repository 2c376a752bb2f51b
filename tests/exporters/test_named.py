import json
import runpy
import sys
import tomllib
import types

import msgspec
import pytest
import torch

import autopipe
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError, MismatchError
from autopipe.exporters.named import NAMES, export
from autopipe.schedules.csv import from_csv
from tests.exporters.plans import at_blocks, planned
from tests.models import GPT


@pytest.fixture(scope="module")
def profile() -> Profile:
    torch.manual_seed(0)
    ids = torch.zeros(8, 16, dtype=torch.int64)
    return autopipe.profile(GPT(), (ids,), micro_batches=(2, 4), budget_s=1.0)


@pytest.fixture(scope="module")
def torn(profile: Profile) -> Plan:
    """The plan of three equal stages, which are no whole blocks."""
    plan = autopipe.partition(profile, gpus=3, batch_size=8, micro_batch_size=2, schedule="gpipe")
    blocks = at_blocks(plan.graph, "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head")
    assert any(stage.begin not in blocks for stage in plan.stages)
    return plan


def test_torchtitan_names_every_module_once(gpt: Graph) -> None:
    text = export(planned(gpt, at_blocks(gpt, "blocks.1", "head")), "torchtitan").files[0].text
    settings = tomllib.loads(text)["parallelism"]
    assert settings["module_fqns_per_model_part"] == [
        ["tokens", "positions", "blocks.0"],
        ["blocks.1", "blocks.2", "blocks.3"],
        ["norm", "head"],
    ]
    assert (settings["pipeline_parallel_degree"], settings["pipeline_parallel_schedule"]) == (3, "1F1B")


def test_torchtitan_reads_a_schedule_of_ours_from_a_file(gpt: Graph) -> None:
    result = export(planned(gpt, at_blocks(gpt, "blocks.1"), schedule="zb-h1"), "torchtitan")
    assert result.files[1].name == "schedule.csv"
    assert from_csv(result.files[1].text).micro_batches == 4


def test_a_device_map_puts_every_parameter_on_its_stages_device(gpt: Graph) -> None:
    result = export(planned(gpt, at_blocks(gpt, "blocks.2")), "accelerate")
    places = json.loads(result.files[0].text)
    for name, _ in GPT().named_parameters():
        assert sum(name == key or name.startswith(f"{key}.") for key in places) == 1, name
    assert places["blocks.1"] == 0
    assert places["blocks.2"] == 1


def test_a_device_map_is_predicted_as_slow_as_it_is(gpt: Graph) -> None:
    result = export(planned(gpt, at_blocks(gpt, "blocks.2")), "transformers")
    assert result.step_ns == 4 * 2 * (2_000_000 + 4_000_000) + 1_000_000


def test_deepspeeds_module_takes_the_plans_parts(gpt: Graph, tmp_path, monkeypatch) -> None:
    """Against the two attributes that PipelineModule's own partitioning reads and the one that it sets."""

    class PipelineModule:
        def __init__(self, layers: list[str], num_stages: int, stage: int) -> None:
            self._layer_specs, self.num_stages, self.global_rank = layers, num_stages, stage
            self._topo = types.SimpleNamespace(get_coord=lambda rank: types.SimpleNamespace(pipe=rank))
            self._partition_layers(method="parameters")

        def _set_bounds(self, start: int, stop: int) -> None:
            self.held = self._layer_specs[start:stop]

    pipe = types.ModuleType("deepspeed.pipe")
    pipe.PipelineModule = PipelineModule  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    file = tmp_path / "module.py"
    file.write_text(export(planned(gpt, at_blocks(gpt, "blocks.1", "blocks.3")), "deepspeed").files[0].text)
    made = runpy.run_path(str(file))
    held = [made["PlannedPipelineModule"](list(made["LAYERS"]), 3, stage).held for stage in range(3)]
    assert held == [["tokens", "positions", "blocks.0"], ["blocks.1", "blocks.2"], ["blocks.3", "norm", "head"]]
    assert made["CONFIG"]["train_batch_size"] == 8
    with pytest.raises(ValueError, match="8 layers in 3 stages"):
        made["PlannedPipelineModule"](["one"], 3, 0)


@pytest.mark.parametrize("to", ["torchtitan", "megatron", "deepspeed", "accelerate"])
def test_what_cannot_be_expressed_gives_way_to_the_best_plan_that_can(profile: Profile, torn: Plan, to: str) -> None:
    result = export(torn, to, profile=profile)
    blocks = at_blocks(torn.graph, "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head")
    assert all(stage.begin in blocks for stage in result.plan.stages)
    assert result.plan.step_ns >= torn.step_ns or to in ("megatron", "deepspeed")
    assert "cannot" in result.notes[0]
    assert "%" in result.notes[0]


def test_a_profile_of_another_run_is_refused(profile: Profile, torn: Plan) -> None:
    other = msgspec.structs.replace(profile, optimizer="sgd")
    with pytest.raises(MismatchError, match="not the one"):
        export(torn, "torchtitan", profile=other)


def test_unknown_runtimes_are_answered_with_the_known_ones(gpt: Graph) -> None:
    with pytest.raises(InputError, match=", ".join(NAMES)):
        export(planned(gpt, at_blocks(gpt, "blocks.2")), "horovod")


def test_a_plan_without_a_graph_is_refused(gpt: Graph) -> None:
    plan = msgspec.structs.replace(planned(gpt, at_blocks(gpt, "blocks.2")), graph=None)
    with pytest.raises(InputError, match="holds no graph"):
        export(plan, "megatron")
