"""The public functions: each takes an ordinary model or a document, and gives the next document, or a `Pipeline`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopipe.documents.files import load
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster

if TYPE_CHECKING:
    import torch
    from torch import nn

    from autopipe.checkpoints.plain import load_checkpoint as load_checkpoint
    from autopipe.executor.grad_scaler import GradScaler as GradScaler
    from autopipe.executor.pipeline import Pipeline
    from autopipe.executor.request import Arguments as Arguments
    from autopipe.executor.request import MicroBatches as MicroBatches
    from autopipe.executor.sampler import ReplicaSampler as ReplicaSampler
    from autopipe.executor.seeds import draw_seed as draw_seed
    from autopipe.stages.loss import LossFunction
    from autopipe.stages.recompute import Policy

_HOMES = {
    "Arguments": "autopipe.executor.request",
    "GradScaler": "autopipe.executor.grad_scaler",
    "MicroBatches": "autopipe.executor.request",
    "Pipeline": "autopipe.executor.pipeline",
    "ReplicaSampler": "autopipe.executor.sampler",
    "draw_seed": "autopipe.executor.seeds",
    "load_checkpoint": "autopipe.checkpoints.plain",
}


def __getattr__(name: str) -> Any:
    # These need torch, and importing this module must not.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def capture(
    model: nn.Module,
    example: Any,
    *,
    leaf: Sequence[type | str] = (),
    granularity: int | None = None,
    profile: Profile | None = None,
    specialise: bool = False,
) -> Graph:
    """Return ``model`` recorded as a graph of layers, checked against the model itself.

    Parameters
    ----------
    model : nn.Module
        Left as it was: parameters, buffers, gradients, modes and random state.
    example : tuple, dict, Tensor or Arguments
        The model's positional arguments, its keyword arguments, its only argument, or a mixture.
    leaf : sequence of classes or name patterns
        Modules to keep whole.
    granularity : int, optional
        About how many layers to make; by default every module of the model is entered.
    profile : Profile, optional
        What modules cost, for ``granularity``; by default their parameters tell.
    specialise : bool
        Let the model itself read values of tensors; the graph then holds for the example's values only.

    Raises
    ------
    CaptureError
        If the model does something that no graph can hold; the message names module, file and line.
    """
    args, kwargs = arguments(example)
    from autopipe.recorder import record

    return record(model, args, kwargs, leaf=leaf, granularity=granularity, profile=profile, specialise=specialise).graph


def profile(
    model: nn.Module,
    example: Any,
    *,
    target: Any = None,
    loss_fn: LossFunction | None = None,
    micro_batches: Sequence[int] | None = None,
    optimizer: str = "adamw",
    device: str | Path | None = None,
    calibrate: Profile | str | Path | None = None,
    budget_s: float = 30.0,
    progress: Any = None,
    leaf: Sequence[type | str] = (),
    granularity: int | None = None,
    specialise: bool = False,
    opened: Sequence[str] = (),
) -> Profile:
    """Return time and memory of every layer of ``model``, measured on the device that it is on, or told for another.

    Parameters
    ----------
    example : tuple, dict or Tensor
        As for `capture`; (batch, ...), with at least as many samples as the largest micro-batch.
    target : tree of Tensor, optional
        What ``loss_fn`` takes beside the output.
    micro_batches : sequence of int, optional
        The sizes to measure, in samples.
    optimizer : str
        The name of the optimizer's class, for the memory of its state.
    device : str or path, optional
        A device that need not be there: a name of the catalogue, such as ``h100-sxm``, or a JSON file. The model,
        which may be on the meta device, then runs without memory: bytes are exact, times are estimates.
    calibrate : Profile or path, optional
        A measured profile, of any model, by which such estimates are corrected.
    budget_s : float
        About how many seconds to spend.
    leaf, granularity, specialise
        As for `capture`.
    opened : sequence of str
        Paths of modules that ``granularity`` would keep whole, to enter all the same.

    Raises
    ------
    CaptureError, ProfileError, InputError
        If the model cannot be recorded or measured, or the example cannot be used.
    """
    from autopipe.profiler import estimate, measure
    from autopipe.recorder import record

    args, kwargs = arguments(example)
    if device is None and calibrate is not None:
        raise InputError("calibrate= corrects estimated times: pass device= with a name of the catalogue or a file.")
    recording = record(model, args, kwargs, leaf=leaf, granularity=granularity, specialise=specialise, opened=opened)
    if device is not None:
        from autopipe.hardware.calibration import calibration_of
        from autopipe.hardware.lookup import find_device

        absent = find_device(str(device))
        measured = load(calibrate, Profile) if isinstance(calibrate, str | Path) else calibrate
        return estimate(
            model,
            args,
            kwargs,
            device=absent,
            target=target,
            loss_fn=loss_fn,
            micro_batches=micro_batches,
            optimizer=optimizer,
            calibration=None if measured is None else calibration_of(measured, absent),
            progress=progress,
            recording=recording,
        )
    return measure(
        model,
        args,
        kwargs,
        target=target,
        loss_fn=loss_fn,
        micro_batches=micro_batches,
        optimizer=optimizer,
        budget_s=budget_s,
        progress=progress,
        recording=recording,
    )


def partition(
    profile: Profile | str | Path,
    *,
    gpus: int | None = None,
    cluster: Cluster | None = None,
    batch_size: int,
    memory_bytes: int | None = None,
    micro_batch_size: int | None = None,
    schedule: str | None = None,
    stages: int | None = None,
    replicas: int | None = None,
    virtual: int | None = None,
    recompute: str = "auto",
    pins: Sequence[str] = (),
    forbidden_cuts: Sequence[str] = (),
    together: Sequence[str] = (),
    tied_together: bool = False,
    time_limit_s: float = 30.0,
) -> Plan:
    """Return the replicas, stages, micro-batch size, schedule and recompute of the fastest step within memory.

    Parameters
    ----------
    profile : Profile or path
        From `profile` or ``autopipe profile``.
    gpus : int
        How many equal devices there are, each with ``memory_bytes``; or give a ``cluster``. A profile that was
        measured on so many ranks (or neither is given) is planned for their devices and links.
    batch_size : int
        The mini-batch, in samples, over all replicas.
    memory_bytes : int, optional
        The limit of each device; by default the memory of the profiled device.
    micro_batch_size, schedule, stages, replicas, virtual : optional
        Fix what would be searched: ``stages`` the pipeline size, ``virtual`` the stages of each rank.
    recompute : str
        ``auto``, ``none``, ``all``, or patterns of layers' names with commas between.
    pins : sequence of str
        ``LAYERS=STAGE``: the stage of the layers that a name or pattern matches, from the last one if negative.
    forbidden_cuts : sequence of str
        Names or patterns of layers with which no stage may begin.
    together : sequence of str
        Modules of which each is to be whole on one rank (``blocks.*``), or several names with commas between.
    tied_together : bool
        Whether layers that share a parameter are to be on one rank; if not, being apart has its price.
    time_limit_s : float
        For the search; what was found by then is returned.

    Raises
    ------
    InfeasibleError
        If no plan fits; the message says what would.
    DocumentError, InputError
        If the profile or an argument cannot be used.
    """
    from autopipe.planner import Request, plan

    document = profile if isinstance(profile, Profile) else load(profile, Profile)
    if (gpus is not None and cluster is not None) or (gpus is None and cluster is None and not document.ranks):
        raise InputError("say which devices there are: pass gpus=8, or a cluster, and not both.")
    if cluster is None and document.ranks and gpus in (None, len(document.ranks)):
        from autopipe.hardware.profiled import measured_cluster

        cluster = measured_cluster(document, memory_bytes=memory_bytes)
    elif cluster is None:
        from autopipe.hardware.cluster import Link

        assert gpus is not None
        link = Link(latency_ns=document.link_latency_ns, bytes_per_s=document.link_bytes_per_s)
        limit = memory_bytes if memory_bytes is not None else document.device_memory_bytes
        cluster = Cluster.uniform(gpus, memory_bytes=limit, intra_node=link)
    request = Request(
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        schedule=schedule,
        stages=stages,
        replicas=replicas,
        virtual=virtual,
        recompute=recompute,
        pins=tuple(pins),
        forbidden_cuts=tuple(forbidden_cuts),
        together=tuple(together),
        tied_together=tied_together,
        time_limit_s=time_limit_s,
    )
    return plan(document, cluster, request)


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
    graph = _graph_of(plan)
    return tuple(stage.module for stage in split_graph(rebuild(model, graph), graph, _bounds(plan)))


def pipeline(
    model: nn.Module,
    *,
    plan: Plan | str | Path | None = None,
    example: Any = None,
    target: Any = None,
    loss_fn: LossFunction | None = None,
    batch_size: int | None = None,
    memory_bytes: int | None = None,
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
    plan : Plan or path, optional
        From `partition` or ``autopipe partition``.
    example : tuple, dict or Tensor
        As for `capture`; needed without a plan.
    target : tree of Tensor, optional
        The example's targets, where ``loss_fn`` takes them.
    loss_fn : function of (output, target) to a scalar, optional
        By default the model's own ``loss`` or scalar output.
    batch_size : int
        The mini-batch, in samples; by default the example's.
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
    from autopipe.executor.deadlines import Deadlines
    from autopipe.executor.launch import join_group, local_devices, under_torchrun
    from autopipe.executor.layout import Layout
    from autopipe.executor.pipeline import Pipeline
    from autopipe.executor.replan import check_reaction, planned_again, planned_ranks, running_ranks
    from autopipe.executor.watchdog import Watchdog
    from autopipe.executor.whereabouts import Doing
    from autopipe.planner.refine import refined
    from autopipe.recorder import rebuild
    from autopipe.stages.compilation import Compilation
    from autopipe.stages.materialise import filling

    distributed = under_torchrun()
    own = join_group() if distributed else None
    deadlines = Deadlines.chosen(deadline_s)
    # From here on a rank that ends before it has a pipeline is told to the others.
    watchdog = Watchdog(deadlines) if distributed else None
    check_reaction(on_change)
    if plan is not None and on_change == "replan":
        known = plan if isinstance(plan, Plan) else load(plan, Plan)
        plan, there, needed = known, running_ranks(known, devices, ranks), planned_ranks(known)
        batch_size = batch_size or known.batch_size * known.data_parallel_size
        if there != needed and replan_profile is not None:
            plan = planned_again(
                lambda gpus: partition(replan_profile, gpus=gpus, batch_size=batch_size, memory_bytes=memory_bytes),
                there,
            )
        elif there != needed and example is None:
            raise InputError(
                f"the plan is for {needed} ranks and {there} are running: to plan again, pass replan_profile=, the "
                "profile that it was made from, or example= to profile again."
            )
        elif there != needed:
            plan = None
    if plan is None:
        if example is None:
            raise InputError(
                "without plan= the model has to be recorded and profiled: pass example=, its arguments for one "
                "batch, or a plan from autopipe partition."
            )

        def alone(opened: Sequence[str], inputs: Any = example, wanted: Any = target) -> Profile:
            return profile(
                model,
                inputs,
                target=wanted,
                loss_fn=loss_fn,
                optimizer=optimizer,
                budget_s=budget_s,
                leaf=leaf,
                granularity=granularity,
                specialise=specialise,
                opened=opened,
            )

        def make(measured: Callable[[Sequence[str]], Profile], gpus: int) -> Plan:
            def planned(document: Profile) -> Plan:
                batch = batch_size if batch_size is not None else _samples(example)
                return partition(document, gpus=gpus, batch_size=batch, memory_bytes=memory_bytes, replicas=1)

            return refined(measured, planned) if granularity is not None else planned(measured(()))

        if own is None or watchdog is None:
            plan = make(alone, len(local_devices(devices, ranks)))
        else:
            with watchdog.watching("profiling and planning", doing=Doing.BUSY):
                plan = _measured_by_all(alone, make, model, (example, target), own)
    document = plan if isinstance(plan, Plan) else load(plan, Plan)
    graph = _graph_of(document)
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


def _measured_by_all(
    alone: Callable[..., Profile],
    make: Callable[[Callable[[Sequence[str]], Profile], int], Plan],
    model: nn.Module,
    data: tuple[Any, Any],
    device: torch.device,
) -> Plan:
    """Return the plan that the first rank makes while every rank measures its own device."""
    import torch.distributed as dist

    from autopipe.executor.launch import broadcast
    from autopipe.profiler.ranks import follow, lead, measure_ranks, moved

    def measured(opened: Sequence[str]) -> Profile:
        with moved(model, data, device) as (example, target):
            return measure_ranks(lambda: alone(opened, example, target), device)

    if dist.get_rank() > 0:
        follow(measured)
    return broadcast(lambda gpus: lead(measured, lambda led: make(led, gpus)), Plan)


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example as positional and keyword arguments of the model."""
    if type(example).__name__ == "Arguments":
        return example.args, example.kwargs
    if isinstance(example, dict):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    return (example,), {}


def _samples(example: Any) -> int:
    from autopipe.executor.microbatch import batch_of

    return batch_of(arguments(example))


def _graph_of(plan: Plan) -> Graph:
    if plan.graph is None:
        raise InputError(
            f"the plan for {plan.model} holds no graph, so it cannot be built: make it from a profile of the model."
        )
    return plan.graph


def _bounds(plan: Plan) -> tuple[int, ...]:
    return (0, *(stage.end for stage in plan.stages))
