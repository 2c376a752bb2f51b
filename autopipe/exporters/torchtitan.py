"""torchtitan takes a plan as the names of the modules of every stage."""

import json

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.exporters.blocks import find_blocks
from autopipe.exporters.export import Export, File
from autopipe.exporters.expressible import expressible
from autopipe.schedules.csv import to_csv
from autopipe.schedules.named import make

# Its names for schedules are torch's; any other schedule goes by its table of actions.
NAMES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "bfs": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
}
SCHEDULES = (*NAMES, "zb-h1", "zb-h2")


def torchtitan(plan: Plan, graph: Graph, profile: Profile | None = None) -> Export:
    """Return the ``[parallelism]`` settings that make torchtitan run ``plan``.

    Raises
    ------
    InputError
        If the model is no row of blocks, or the plan has to change and there is no profile.

    References
    ----------
    torchtitan 0.3, ``ParallelismConfig`` and ``pipeline_llm``.
    """
    blocks = find_blocks(graph)
    found, notes = expressible(plan, profile, runtime="torchtitan", forbidden=blocks.torn(), schedules=SCHEDULES)
    parts = [blocks.held(stage.begin, stage.end) for stage in found.stages]
    lines = [
        "[parallelism]",
        f"pipeline_parallel_degree = {found.pipeline_size}",
        f"data_parallel_replicate_degree = {found.data_parallel_size}",
        f"pipeline_parallel_microbatch_size = {found.micro_batch_size}",
    ]
    files = []
    if found.schedule in NAMES:
        lines.append(f'pipeline_parallel_schedule = "{NAMES[found.schedule]}"')
    else:
        lines.append('pipeline_parallel_schedule = "_PipelineScheduleRuntime"')
        lines.append('pipeline_parallel_schedule_csv = "schedule.csv"')
        schedule = make(found.schedule, stages=found.pipeline_size, micro_batches=found.micro_batches)
        files.append(File(name="schedule.csv", text=to_csv(schedule)))
    lines.append("module_fqns_per_model_part = [")
    lines += [f"    {json.dumps(part, ensure_ascii=False)}," for part in parts]
    lines += ["]", "", "[training]", f"local_batch_size = {found.batch_size}"]
    own = {blocks.name(number) for number in blocks.numbers}
    if "." in blocks.path or any("." in name for part in parts for name in part if name not in own):
        notes += (
            "torchtitan keeps or drops the model's own children only, and here some stand deeper "
            f"(blocks at {blocks.path}): rename them as its models do (layers.0, tok_embeddings, norm, lm_head).",
        )
    if found.batch_size % found.micro_batch_size:
        notes += (
            f"torchtitan needs a batch that micro-batches divide: {found.batch_size} samples do not come in "
            f"micro-batches of {found.micro_batch_size}.",
        )
    notes += ("Hold the blocks in a ModuleDict: torchtitan numbers what it keeps of a ModuleList anew on every stage.",)
    if graph.tied():
        notes += ("Weights tied over stages: torchtitan makes two of them.",)
    if any(stage.recompute for stage in found.stages):
        notes += ("Which layers recompute is not said here: torchtitan's activation checkpointing is per model.",)
    return Export(
        files=(File(name="torchtitan.toml", text="\n".join(lines) + "\n"), *files),
        plan=found,
        step_ns=found.step_ns,
        notes=notes,
    )
