"""From an ordinary model to a plan: each function gives the next document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopipe.api.example import arguments, with_target_dim
from autopipe.api.recorded import explained
from autopipe.documents.arguments import typed
from autopipe.documents.files import load
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster, Link

if TYPE_CHECKING:
    from torch import nn

    from autopipe.stages.loss import LossFunction


@typed
def capture(
    model: nn.Module,
    example: Any,
    *,
    leaf: Sequence[type | str] = (),
    granularity: int | None = None,
    profile: Profile | None = None,
    specialise: bool = False,
    batch_dims: Mapping[str, int | None] | None = None,
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
    batch_dims : mapping of str to int or None, optional
        In which dimension arguments carry the batch, by name, None for those that do not. What is not given is found,
        by running parts of the example in evaluation mode.

    Raises
    ------
    CaptureError
        If the model does something that no graph can hold; the message names module, file and line. If it raises, that
        is the cause.
    """
    args, kwargs = arguments(example)
    from autopipe.recorder import record

    with explained(model):
        return record(
            model,
            args,
            kwargs,
            leaf=leaf,
            granularity=granularity,
            profile=profile,
            specialise=specialise,
            batch_dims=batch_dims,
        ).graph


@typed
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
    progress: Callable[[str, float], None] | None = None,
    leaf: Sequence[type | str] = (),
    granularity: int | None = None,
    specialise: bool = False,
    opened: Sequence[str] = (),
    batch_dims: Mapping[str, int | None] | None = None,
    target_dim: int | None = None,
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
    leaf, granularity, specialise, batch_dims
        As for `capture`.
    target_dim : int, optional
        In which dimension targets (and weights) carry the batch; by default that of the output, where they have as
        many samples there, and otherwise their first.
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
    with explained(model):
        recording = record(
            model,
            args,
            kwargs,
            leaf=leaf,
            granularity=granularity,
            specialise=specialise,
            opened=opened,
            batch_dims=batch_dims,
        )
    recording = replace(recording, graph=with_target_dim(recording.graph, target_dim))
    asked: dict[str, Any] = {
        "target": target,
        "loss_fn": loss_fn,
        "micro_batches": micro_batches,
        "optimizer": optimizer,
        "progress": progress,
        "recording": recording,
    }
    if device is None:
        return measure(model, args, kwargs, budget_s=budget_s, **asked)
    from autopipe.hardware.calibration import calibration_of
    from autopipe.hardware.lookup import find_device

    absent = find_device(str(device))
    measured = load(calibrate, Profile) if isinstance(calibrate, str | Path) else calibrate
    calibration = None if measured is None else calibration_of(measured, absent)
    return estimate(model, args, kwargs, device=absent, calibration=calibration, **asked)


@typed
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
    devices = cluster if cluster is not None else _cluster_of(document, gpus, memory_bytes)
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
    return plan(document, devices, request)


def _cluster_of(profile: Profile, gpus: int | None, memory_bytes: int | None) -> Cluster:
    """Return the profiled ranks as a cluster, or ``gpus`` equal devices that are linked as the profile says."""
    if profile.ranks and gpus in (None, len(profile.ranks)):
        from autopipe.hardware.profiled import measured_cluster

        return measured_cluster(profile, memory_bytes=memory_bytes)
    assert gpus is not None
    link = Link(latency_ns=profile.link_latency_ns, bytes_per_s=profile.link_bytes_per_s)
    limit = memory_bytes if memory_bytes is not None else profile.device_memory_bytes
    return Cluster.uniform(gpus, memory_bytes=limit, intra_node=link)
