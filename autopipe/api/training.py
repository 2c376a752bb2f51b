"""From a model and a plan to stages: as a `Pipeline` that trains, or as ordinary modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopipe.api.example import with_target_dim
from autopipe.documents.arguments import typed
from autopipe.documents.files import load
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from autopipe.executor.pipeline import Pipeline
    from autopipe.stages.loss import LossFunction
    from autopipe.stages.recompute import Policy


@typed
def pipeline(
    model: nn.Module,
    example: Any = None,
    *,
    plan: Plan | str | Path | None = None,
    target: Any = None,
    loss_fn: LossFunction | None = None,
    batch_size: int | None = None,
    memory_bytes: int | None = None,
    micro_batch_size: int | None = None,
    schedule: str | None = None,
    optimizer: str = "adamw",
    budget_s: float = 30.0,
    devices: Sequence[str | torch.device] | None = None,
    ranks: int | None = None,
    seed: int | None = None,
    reduction: str = "mean",
    recompute_policy: Policy | None = None,
    leaf: Sequence[type | str] = (),
    granularity: int | None = None,
    specialise: bool = False,
    batch_dims: Mapping[str, int | None] | None = None,
    target_dim: int | None = None,
    boundary_dtype: torch.dtype | None = None,
    compile: str | None = None,
    compile_options: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    initialise: Callable[[nn.Module], None] | None = None,
    deadline_s: float | None = None,
    on_change: str | None = None,
    replan_profile: Profile | str | Path | None = None,
) -> Pipeline:
    """Return ``model`` as a `Pipeline` that is ready to train.

    With ``plan`` the model is built as planned and never run. Without, it is recorded and profiled on the
    device of every rank, planned for these devices and their links, and the plan is given to all ranks.

    Parameters
    ----------
    model : nn.Module
        The same on every rank. Its parameters are trained in place.
    example : tuple, dict or Tensor
        As for `capture`; needed without a plan.
    plan : Plan or path, optional
        From `partition` or ``autopipe partition``.
    target : tree of Tensor, optional
        The example's targets, where ``loss_fn`` takes them.
    loss_fn : function of (output, target) to a scalar, optional
        By default the model's own ``loss`` or scalar output.
    batch_size : int
        The mini-batch, in samples; by default the example's.
    micro_batch_size, schedule : optional
        Fix what the planner would choose: the samples of a micro-batch, and for example ``"1f1b"``. A plan has both;
        for more wishes make one with `partition`.
    devices, ranks : optional
        Without torchrun: the devices of the thread-ranks, or how many thread-ranks on the CPU.
    seed : int, optional
        What dropout and other random operations draw from, with step, micro-batch and node (`draw_seed`); by
        default the first rank's ``torch.initial_seed()``. A plain loop that seeds the same way, or a pipeline
        of one stage, draws the same.
    reduction : str
        What ``loss_fn`` does with its samples: ``"mean"``, or ``"sum"``, where micro-batches add up.
    recompute_policy : function or sequence of operations, optional
        Which results the layers that the plan recomputes keep all the same: what
        `torch.utils.checkpoint.create_selective_checkpoint_contexts` takes.
    leaf, granularity, specialise
        As for `capture`, without a plan. With ``granularity`` a layer that alone sets the pace is opened, and
        the model measured and planned again.
    batch_dims, target_dim : optional
        As for `profile`; a plan knows the dimensions of the arguments.
    boundary_dtype : torch.dtype, optional
        A smaller dtype, such as bfloat16, in which larger floating-point tensors travel between ranks.
    compile : {"stage", "layer"}, optional
        What is compiled by itself. The backward of a compiled stage is not split: torch compiles it as one.
    compile_options : mapping, optional
        What else `torch.compile` is given, such as ``{"backend": "aot_eager"}``.
    weights : path, optional
        A checkpoint with the model's own names, safetensors or torch's, of which each rank reads its part.
    initialise : function of a module, optional
        For a model on the meta device: called for every module after its ``reset_parameters``. Each rank has
        memory for its own stages only, and the numbers are those that one process would draw for the whole model
        from the same random state.
    deadline_s : float, optional
        How long an action of a rank may take before the rank counts as stuck and all ranks end with a sentence
        about it; by default 300 s before the first step has been measured, and then 25 times the longest action
        measured, at least 30 s. The environment variable ``AUTOPIPE_DEADLINE_S`` says the same.
    on_change : {"replan"}, optional
        What is done where ``plan`` is for another number of devices than there are: a new plan for these, of the
        same mini-batch, from ``replan_profile``, or from a new profile of ``example``. By default it is an error.
    replan_profile : Profile or path, optional
        From `profile` or ``autopipe profile``.

    Raises
    ------
    AutopipeError
        If the model, plan or arguments cannot be used.
    """
    from autopipe.api.choice import Choice
    from autopipe.executor.deadlines import Deadlines
    from autopipe.executor.launch import join_group, under_torchrun
    from autopipe.executor.layout import Layout
    from autopipe.executor.pipeline import Pipeline
    from autopipe.executor.replan import check_reaction
    from autopipe.executor.watchdog import Watchdog
    from autopipe.recorder import rebuild
    from autopipe.stages.compilation import Compilation
    from autopipe.stages.materialise import filling

    if isinstance(example, Plan | str | Path):
        raise InputError("pipeline was given a plan as its example: pass it by name, plan=.")
    if plan is not None and (micro_batch_size is not None or schedule is not None):
        raise InputError(
            "a plan has its micro-batches and schedule: leave micro_batch_size= and schedule= out, or make the plan "
            "with them (autopipe.partition, autopipe partition --micro-batch 4 --schedule 1f1b)."
        )
    own = join_group() if under_torchrun() else None
    deadlines = Deadlines.chosen(deadline_s)
    # From here on a rank that ends before it has a pipeline is told to the others.
    watchdog = Watchdog(deadlines) if own is not None else None
    check_reaction(on_change)
    choice = Choice(
        model=model,
        example=example,
        target=target,
        batch_size=batch_size,
        memory_bytes=memory_bytes,
        how={
            "loss_fn": loss_fn,
            "micro_batches": None if micro_batch_size is None else (micro_batch_size,),
            "optimizer": optimizer,
            "budget_s": budget_s,
            "leaf": leaf,
            "granularity": granularity,
            "specialise": specialise,
            "batch_dims": batch_dims,
            "target_dim": target_dim,
        },
        wishes={"micro_batch_size": micro_batch_size, "schedule": schedule},
        devices=devices,
        ranks=ranks,
        own=own,
        watchdog=watchdog,
    )
    document = load(plan, Plan) if isinstance(plan, str | Path) else plan
    if document is None:
        document = choice.profiled()
    elif on_change is not None:
        document = choice.kept_or_anew(document, replan_profile)
    graph = _graph_of(document, target_dim)
    layout = Layout.planned(document)
    if devices is None and ranks is None:
        ranks = layout.ranks * layout.replicas
    return Pipeline(
        rebuild(model, graph),
        graph,
        layout,
        loss_fn=loss_fn,
        plan=document,
        devices=devices,
        ranks=ranks,
        seed=seed,
        reduction=reduction,
        recompute_policy=recompute_policy,
        boundary_dtype=boundary_dtype,
        compilation=Compilation(per=compile, options=compile_options or {}) if compile is not None else None,
        materialise=filling(model, weights=weights, initialise=initialise),
        deadlines=deadlines,
        watchdog=watchdog,
    )


@typed
def split(model: nn.Module, plan: Plan | str | Path) -> tuple[nn.Module, ...]:
    """Return the stages of ``plan`` as ordinary modules that share ``model``'s parameters under their names.

    The first takes the model's own arguments; each other takes the values that it reads from earlier
    stages, and all but the last return a tuple of those that later stages read. The model is not run.

    Raises
    ------
    MismatchError
        If the plan was made for another model.
    """
    from autopipe.recorder import rebuild
    from autopipe.stages.split import split as split_graph

    plan = plan if isinstance(plan, Plan) else load(plan, Plan)
    graph = _graph_of(plan, None)
    return tuple(
        stage.module for stage in split_graph(rebuild(model, graph), graph, (0, *(stage.end for stage in plan.stages)))
    )


def _graph_of(plan: Plan, target_dim: int | None) -> Graph:
    if plan.graph is None:
        raise InputError(
            f"the plan for {plan.model} holds no graph, so it cannot be built: make it from a profile of the model."
        )
    return with_target_dim(plan.graph, target_dim)
