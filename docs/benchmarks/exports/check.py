"""Hands exported plans to the runtimes they are for: Megatron-Core, torchtitan, DeepSpeed and accelerate.

Run from the repository's root, in an environment that holds those packages (see README.md).
"""

import json
import re
import runpy
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from autopipe.documents.plan import Plan
from autopipe.exporters.named import export
from autopipe.recorder import record
from tests.exporters.plans import at_blocks, planned
from tests.models import GPT

BLOCKS = 6
CASES = {
    "even": (("blocks.3",), "1f1b", 1),
    "uneven": (("blocks.1", "blocks.4"), "1f1b", 1),
    "interleaved": (("blocks.2", "blocks.3", "blocks.4"), "interleaved", 2),
}


def plans(tied: bool) -> dict[str, Plan]:
    torch.manual_seed(0)
    graph = record(GPT(blocks=BLOCKS, tied=tied), (torch.zeros(4, 16, dtype=torch.int64),)).graph
    return {
        name: planned(graph, at_blocks(graph, *firsts), schedule=schedule, virtual_stages=virtual)
        for name, (firsts, schedule, virtual) in CASES.items()
    }


def blocks_of(plan: Plan) -> list[int]:
    """The number of blocks of every stage."""
    return [len({name.split(".")[1] for name in s.layers if name.startswith("blocks.")}) for s in plan.stages]


def megatron(plan: Plan) -> str:
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    text = export(plan, "megatron").files[0].text
    match = re.search(r'--pipeline-model-parallel-layout "(.*)"', text)
    assert match is not None
    layout = PipelineParallelLayerLayout(match[1], plan.pipeline_size)
    layout.validate_layer_layout(BLOCKS, None)
    for stage, count in zip(plan.stages, blocks_of(plan), strict=True):
        held = layout.layout[stage.rank][plan.stages.index(stage) // plan.pipeline_size]
        assert held.count(LayerType.decoder) == count, (stage.rank, held)
    return match[1]


def torchtitan(plan: Plan) -> str:
    from torchtitan.config.configs import ParallelismConfig
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping, _split_module

    settings = tomllib.loads(export(plan, "torchtitan").files[0].text)["parallelism"]
    config = ParallelismConfig(**settings)
    parts = config.module_fqns_per_model_part
    model = GPT(blocks=BLOCKS, tied=False)
    # As torchtitan's own models hold them; it numbers the rest of a ModuleList anew.
    model.blocks = torch.nn.ModuleDict({str(number): block for number, block in enumerate(model.blocks)})
    held = [dict(_split_module(model, names).named_parameters()) for names in parts]
    assert sorted(name for part in held for name in part) == sorted(dict(model.named_parameters()))
    for rank in range(plan.pipeline_size):
        own = _get_pp_rank_to_stage_indices_mapping(
            rank, plan.pipeline_size, config.pipeline_parallel_schedule, len(parts)
        )
        assert [plan.stages[stage].rank for stage in own] == [rank] * len(own)
    return " | ".join(str(len(part)) for part in parts) + " modules"


def deepspeed(plan: Plan) -> str:
    if plan.schedule != "1f1b":
        return "has 1F1B only"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "planned_module.py"
        file.write_text(export(plan, "deepspeed").files[0].text)
        mp.spawn(_deepspeed_rank, (str(file), plan.pipeline_size, folder), nprocs=plan.pipeline_size)
        counts = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(plan.pipeline_size)]
    assert [sum(name.startswith("blocks.") for name in held) for held in counts] == blocks_of(plan)
    return " | ".join(str(len(held)) for held in counts) + " layers"


def _deepspeed_rank(rank: int, file: str, ranks: int, folder: str) -> None:
    import os

    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", DS_ACCELERATOR="cpu")
    import deepspeed as package
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    package.init_distributed("gloo", auto_mpi_discovery=False)
    made = runpy.run_path(file)
    layers = [torch.nn.Linear(1, 1) for _ in made["LAYERS"]]
    module = made["PlannedPipelineModule"](layers=layers, num_stages=ranks)
    held = made["LAYERS"][module._local_start : module._local_stop]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(held))
    dist.destroy_process_group()


def accelerate(plan: Plan) -> str:
    from accelerate.utils import check_device_map

    places = json.loads(export(plan, "accelerate").files[0].text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_device_map(GPT(blocks=BLOCKS), places)
    return f"{len(places)} entries"


def main() -> None:
    checks: tuple[Callable[[Plan], str], ...] = (megatron, torchtitan, deepspeed, accelerate)
    failed = 0
    for tied in (True, False):
        for name, plan in plans(tied).items():
            for check in checks:
                try:
                    answer = f"accepted: {check(plan)}"
                except ModuleNotFoundError as error:
                    answer = f"not tried: {error}"
                except Exception as error:
                    failed += 1
                    answer = f"REFUSED: {type(error).__name__}: {error}"
                print(f"{name:12} {'tied' if tied else 'untied':7} {check.__name__:11} {answer}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
