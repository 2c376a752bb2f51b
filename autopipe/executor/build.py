"""Runtimes are built from a recorded model and the stages that a plan chose."""

import contextlib
import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.executor.data_parallel import replica_total
from autopipe.executor.ending import Ending
from autopipe.executor.layout import Layout
from autopipe.executor.microbatch import Inputs
from autopipe.executor.rank import Rank
from autopipe.executor.runtime import Runtime
from autopipe.executor.seeds import Seeds, seed_draws
from autopipe.executor.shares import Reduction, Shares
from autopipe.executor.tied import Tie, TiedGradients, find_ties
from autopipe.executor.whereabouts import Whereabouts
from autopipe.hardware.heap import keep_freed_memory
from autopipe.schedules.edges import stage_edges
from autopipe.stages.boundary import routes
from autopipe.stages.compilation import Compilation
from autopipe.stages.loss import LossFunction
from autopipe.stages.recompute import Policy, recompute_layers
from autopipe.stages.split import Stage, retarget, split
from autopipe.transport.endpoint import Endpoint

TIE_TAGS = 1 << 28


def rank_pairs(graph: Graph, layout: Layout) -> set[tuple[int, int]]:
    """Return the ordered pairs of ranks that exchange tensors."""
    ranks = layout.stage_ranks
    pairs = {(ranks[route.source], ranks[route.target]) for route in routes(graph.values, layout.bounds)}
    for tie in find_ties(graph, layout.bounds, ranks):
        pairs |= {(other, tie.owner) for other in tie.ranks[1:]}
    both = pairs | {(target, source) for source, target in pairs}
    return {pair for pair in both if pair[0] != pair[1]}


def tensors_of_ranks(graph: Graph, layout: Layout, devices: Mapping[int, torch.device]) -> dict[str, torch.device]:
    """Return the names of all parameters and buffers that the ranks of ``devices`` read, each with a device."""
    found: dict[str, torch.device] = {}
    for stage, rank in enumerate(layout.stage_ranks):
        if rank in devices:
            for layer in graph.layers[layout.bounds[stage] : layout.bounds[stage + 1]]:
                for name in (*layer.parameters, *layer.buffers):
                    found.setdefault(name, devices[rank])
    return found


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How ranks compute what the layout gives them.

    Attributes
    ----------
    loss_fn : function of (output, target) to a scalar, optional
        By default the model's own loss.
    reduction : Reduction
        Whether the losses of micro-batches count by their shares, or add up.
    recompute_policy : Policy, optional
        Which results recomputed layers keep.
    boundary_dtype : torch.dtype, optional
        A smaller one in which floating-point tensors travel between ranks.
    compilation : Compilation, optional
        How stages are compiled.
    """

    loss_fn: LossFunction | None = None
    reduction: Reduction = Reduction.MEAN
    recompute_policy: Policy | None = None
    boundary_dtype: torch.dtype | None = None
    compilation: Compilation | None = None


def build_rank(
    module: fx.GraphModule,
    graph: Graph,
    layout: Layout,
    endpoint: Endpoint,
    recipe: Recipe,
    *,
    draw_lock: contextlib.AbstractContextManager[Any],
    whereabouts: Whereabouts | None = None,
) -> Rank:
    """Return what the endpoint's rank runs of ``module`` under ``layout``.

    Parameters
    ----------
    draw_lock : context manager
        Held while a random operation draws: a lock where several ranks share a generator.
    whereabouts : Whereabouts, optional
        Where the rank is told to be.

    Raises
    ------
    InputError
        If the layout recomputes a layer that the model lacks.
    ScheduleError
        If the schedule cannot run.
    """
    if endpoint.device.type == "cpu":
        keep_freed_memory()
    ties = find_ties(graph, layout.bounds, layout.stage_ranks)
    originals = _by_original_name(module, graph)
    stand_ins = _stand_ins(ties, originals, endpoint)
    seeds = Seeds(endpoint.device, draw_lock)
    twins = {id(originals[name]): parameter for name, parameter in stand_ins.items()}
    stages = _own_stages(module, graph, layout, endpoint.rank, twins)
    for stage in stages:
        _prepare(stage, graph, layout, recipe, seeds)
    own = originals | stand_ins
    return Rank(
        runtime=_runtime(stages, graph, layout, endpoint, recipe, seeds, whereabouts),
        places=_places(stages, own),
        tied=TiedGradients(
            ties, {tie.name: own[tie.name] for tie in ties if endpoint.rank in tie.ranks}, endpoint, first_tag=TIE_TAGS
        ),
    )


def _own_stages(
    module: fx.GraphModule, graph: Graph, layout: Layout, rank: int, twins: Mapping[int, nn.Parameter]
) -> tuple[Stage, ...]:
    """Return the rank's stages; ``twins`` take the places of the parameters whose ids they stand under."""
    stages = split(
        module, graph, layout.bounds, twins=[dict(twins) if owner == rank else {} for owner in layout.stage_ranks]
    )
    return tuple(stage for stage, owner in zip(stages, layout.stage_ranks, strict=True) if owner == rank)


def _prepare(stage: Stage, graph: Graph, layout: Layout, recipe: Recipe, seeds: Seeds) -> None:
    """Make a stage draw from ``seeds``, compute on their device, recompute and be compiled as it should."""
    layers = graph.layers[stage.begin : stage.end]
    seed_draws(stage.module, {name for layer in layers for name in layer.draws}, seeds)
    if seeds.device.type != "cpu":
        retarget(stage.module, seeds.device)
    recomputed = _recomputed(graph, layout, stage)
    recompute_layers(stage.module, recomputed, policy=recipe.recompute_policy)
    if recipe.compilation is not None:
        rest = {layer.name: layer.nodes for layer in layers if layer.name not in recomputed}
        recipe.compilation.apply(stage.module, rest)


def _runtime(
    stages: Sequence[Stage],
    graph: Graph,
    layout: Layout,
    endpoint: Endpoint,
    recipe: Recipe,
    seeds: Seeds,
    whereabouts: Whereabouts | None,
) -> Runtime:
    shares = Shares(recipe.reduction, total=replica_total(endpoint), dim=graph.output_dim)
    runtime = Runtime(
        stages=stages,
        stage_ranks=layout.stage_ranks,
        routes=routes(graph.values, layout.bounds),
        edges=stage_edges(graph.values, layout.bounds),
        schedule=layout.training,
        forward_schedule=layout.evaluation,
        micro_batches=layout.micro_batches,
        endpoint=endpoint,
        ending=Ending(endpoint, recipe.loss_fn, shares, seeds, inputs=Inputs.of(graph)),
        seeds=seeds,
        boundary_dtype=recipe.boundary_dtype,
        splits_backward=recipe.compilation is None,
        whereabouts=whereabouts,
        inputs=Inputs.of(graph),
    )
    if recipe.compilation is not None and runtime.has_split_backwards:
        warnings.warn(
            f"schedule {layout.schedule} splits backwards, and torch compiles each backward as one: all of it runs in "
            "the first part, so that idle time is that of 1F1B. Compile no stages, or plan with another schedule.",
            stacklevel=2,
        )
    return runtime


def _places(stages: Sequence[Stage], own: Mapping[str, nn.Parameter]) -> dict[str, tuple[nn.Module, str]]:
    """Return where each of the rank's parameters stands, by original name: the first module and its attribute."""
    names = {id(parameter): name for name, parameter in own.items()}
    places: dict[str, tuple[nn.Module, str]] = {}
    for part in dict.fromkeys(part for stage in stages for part in stage.module.modules()):
        for attribute, parameter in part._parameters.items():
            if parameter is not None:
                places.setdefault(names[id(parameter)], (part, attribute))
    return places


def _recomputed(graph: Graph, layout: Layout, stage: Stage) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each layer of a stage that is to be recomputed."""
    unknown = set(layout.recompute) - {layer.name for layer in graph.layers}
    if unknown:
        raise InputError(f"the plan recomputes layer {min(unknown)}, which the model does not have: plan it anew.")
    layers = graph.layers[stage.begin : stage.end]
    return {layer.name: layer.nodes for layer in layers if layer.name in layout.recompute}


def _by_original_name(module: fx.GraphModule, graph: Graph) -> dict[str, nn.Parameter]:
    found = dict(module.named_parameters(remove_duplicate=False))
    originals: dict[str, nn.Parameter] = {}
    for parameter in graph.parameters:
        for name in (parameter.name, *parameter.aliases):
            if name in found:
                originals.setdefault(parameter.name, found[name])
    return originals


def _stand_ins(ties: Sequence[Tie], originals: dict[str, nn.Parameter], endpoint: Endpoint) -> dict[str, nn.Parameter]:
    """Return this rank's own parameters for the ties that another thread-rank owns.

    They share the owner's memory where the device is the same, and are copied before each step where not.
    """
    if not endpoint.shares_memory:
        return {}
    return {
        tie.name: nn.Parameter(originals[tie.name].detach(), requires_grad=originals[tie.name].requires_grad)
        for tie in ties
        if endpoint.rank in tie.ranks[1:]
    }


def over_same_parameters(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a model over the same memory of parameters: its gradients and buffers are its own."""
    twins = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, twins)
