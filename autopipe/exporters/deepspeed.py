"""DeepSpeed takes a plan as the first layer of every stage of a `PipelineModule`."""

from itertools import pairwise

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.exporters.blocks import find_blocks
from autopipe.exporters.export import Export, File
from autopipe.exporters.expressible import expressible

SCHEDULES = ("1f1b",)

_MODULE = '''"""A DeepSpeed PipelineModule whose stages are those of the plan, instead of a rule's."""

from deepspeed.pipe import PipelineModule

# The layers of the model, as your list of LayerSpec must hold them, one line each.
LAYERS = (
{layers}
)
PARTS = {parts}


class PlannedPipelineModule(PipelineModule):
    """PlannedPipelineModule(layers=[...], num_stages={stages}, loss_fn=...)"""

    def _partition_layers(self, method="planned"):
        if len(self._layer_specs) != PARTS[-1] or self.num_stages != len(PARTS) - 1:
            raise ValueError(f"the plan has {{PARTS[-1]}} layers in {{len(PARTS) - 1}} stages")
        self.parts = list(PARTS)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


CONFIG = {{
    "train_batch_size": {batch},
    "train_micro_batch_size_per_gpu": {micro_batch},
    "gradient_accumulation_steps": {micro_batches},
}}
'''


def deepspeed(plan: Plan, graph: Graph, profile: Profile | None = None) -> Export:
    """Return a module for DeepSpeed whose parts are the stages of ``plan``.

    Each block, and each module outside the blocks, is one entry of DeepSpeed's list of layers.

    Raises
    ------
    InputError
        If the model is no row of blocks, or the plan has to change and there is no profile.

    References
    ----------
    DeepSpeed, ``deepspeed.runtime.pipe.module.PipelineModule`` (``parts`` and ``_partition_layers``).
    """
    blocks = find_blocks(graph)
    found, notes = expressible(plan, profile, runtime="DeepSpeed", forbidden=blocks.torn(), schedules=SCHEDULES)
    entries: list[str] = []
    parts = [0]
    for stage in found.stages:
        entries += [name for name in blocks.held(stage.begin, stage.end) if name not in entries]
        parts.append(len(entries))
    empty = [index for index, (low, high) in enumerate(pairwise(parts)) if low == high]
    if empty:
        raise InputError(
            f"stage {empty[0]} of the plan holds no module with parameters of its own, and DeepSpeed's layers are "
            "modules: export --to torch."
        )
    text = _MODULE.format(
        layers="\n".join(f"    {name!r}," for name in entries),
        parts=tuple(parts),
        stages=len(found.stages),
        batch=found.micro_batch_size * found.micro_batches * found.data_parallel_size,
        micro_batch=found.micro_batch_size,
        micro_batches=found.micro_batches,
    )
    notes += ("Layers exchange one tensor or tuple with the next: write the model as a list of LayerSpec first.",)
    if graph.tied():
        names = ", ".join(sorted(graph.tied()))
        notes += (f"Tied: {names}. Their layers must be TiedLayerSpec with one key.",)
    if any(value.consumers[-1] > value.producer + 1 for value in graph.values if value.requires_grad):
        notes += ("Values that skip layers must be handed through every layer between.",)
    if any(stage.recompute for stage in found.stages):
        notes += ("DeepSpeed recomputes every n-th layer on all stages (activation_checkpoint_interval), not some.",)
    return Export(files=(File(name="planned_module.py", text=text),), plan=found, step_ns=found.step_ns, notes=notes)
