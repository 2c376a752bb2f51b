"""accelerate and transformers take a plan as a ``device_map``: which module stands on which device."""

import json

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.exporters.blocks import find_blocks
from autopipe.exporters.export import Export, File
from autopipe.exporters.expressible import expressible
from autopipe.units import format_time

SCHEDULES = ("1f1b", "gpipe", "interleaved", "bfs", "zb-h1", "zb-h2", "zb-v", "fitted")


def device_map(plan: Plan, graph: Graph, profile: Profile | None = None) -> Export:
    """Return the ``device_map`` that puts every module on the device of its stage.

    Devices work one after another there, so the step is the sum of all stages' times over all micro-batches: that is
    the ``step_ns`` of the result.

    Raises
    ------
    InputError
        If the model is no row of blocks, or the plan has to change and there is no profile.

    References
    ----------
    accelerate, Handling big models for inference, "Designing a device map".
    """
    blocks = find_blocks(graph)
    found, notes = expressible(plan, profile, runtime="accelerate", forbidden=blocks.torn(), schedules=SCHEDULES)
    places: dict[str, int] = {}
    for stage in found.stages:
        for name in blocks.held(stage.begin, stage.end):
            places.setdefault(name, stage.rank)
    one_by_one = found.micro_batches * sum(stage.forward_ns + stage.backward_ns for stage in found.stages)
    one_by_one += max(stage.optimizer_ns for stage in found.stages)
    notes += (
        "A device_map has no pipeline: one device works at a time. The same computation is predicted to take "
        f"{format_time(one_by_one)} there against {format_time(found.step_ns)} as a pipeline; it saves memory only.",
    )
    return Export(
        files=(File(name="device_map.json", text=json.dumps(places, indent=2, ensure_ascii=False) + "\n"),),
        plan=found,
        step_ns=one_by_one,
        notes=notes,
    )
