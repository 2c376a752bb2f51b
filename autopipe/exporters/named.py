"""Every runtime that a plan can be exported to has a name."""

from autopipe.documents.arguments import typed
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.exporters.deepspeed import deepspeed
from autopipe.exporters.device_map import device_map
from autopipe.exporters.export import Export
from autopipe.exporters.megatron import megatron
from autopipe.exporters.torch_script import torch_script
from autopipe.exporters.torchtitan import torchtitan

_BY_BLOCKS = {
    "torchtitan": torchtitan,
    "megatron": megatron,
    "deepspeed": deepspeed,
    "accelerate": device_map,
    "transformers": device_map,
}
NAMES = ("torch", *_BY_BLOCKS)


@typed
def export(
    plan: Plan, to: str, *, profile: Profile | None = None, plan_file: str = "plan.json", model: str | None = None
) -> Export:
    """Return ``plan`` in the words of the runtime called ``to``, one of `NAMES`.

    Parameters
    ----------
    profile : Profile, optional
        The plan's; where the runtime cannot express the plan, the best that it can is looked for in it.
    plan_file, model : str, optional
        For ``torch``: where the script finds the plan, and the factory of model and example.

    Raises
    ------
    InputError
        If there is no such runtime, the plan holds no graph, or the runtime cannot run the model.
    """
    if to not in NAMES:
        raise InputError(f"there is no export to {to!r}: choose from {', '.join(NAMES)}.")
    graph = _graph_of(plan)
    if to == "torch":
        return torch_script(plan, graph, plan_file=plan_file, model=model)
    return _BY_BLOCKS[to](plan, graph, profile)


def _graph_of(plan: Plan) -> Graph:
    if plan.graph is None:
        raise InputError(
            f"the plan for {plan.model} holds no graph, so nothing says which modules its layers are: make it from a "
            "profile of the model."
        )
    return plan.graph
