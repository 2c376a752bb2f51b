"""A model is profiled for a device that is not there: its graph runs without memory, and times follow from its work."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from autopipe.documents.graph import Graph
from autopipe.documents.profile import Profile
from autopipe.errors import ProfileError
from autopipe.hardware.calibration import Calibration
from autopipe.hardware.specification import Specification
from autopipe.profiler.assemble import profiled_layers, profiled_values, shared_parameters
from autopipe.profiler.estimates import Estimates, OptimizerEstimate, Works
from autopipe.profiler.example import asked_sizes, batch_of, resize
from autopipe.profiler.failures import explained
from autopipe.profiler.folding import Folding, fold, likeness, unfolded
from autopipe.profiler.footprint import Footprint, measure_footprint
from autopipe.profiler.isolation import Noted
from autopipe.profiler.kernels import kernels_of
from autopipe.profiler.layers import Chain, Example, Loss, Piece, pieces_of
from autopipe.profiler.loss import OwnLoss
from autopipe.profiler.optimizer import parse_optimizer
from autopipe.profiler.results import KeptMemory
from autopipe.profiler.subject import autocast_dtype, example_of, main_dtype, trained_parameters
from autopipe.profiler.timer import Progress
from autopipe.profiler.twin import fake_like, fake_twin
from autopipe.recorder import Recording, rebuild, record
from autopipe.stages.loss import LossFunction, resolve_loss
from autopipe.stages.split import retarget_constants


def estimate(
    model: nn.Module,
    args: Sequence[Any] | Tensor,
    kwargs: dict[str, Any] | None = None,
    *,
    device: Specification,
    target: Any = None,
    loss_fn: LossFunction | None = None,
    micro_batches: Sequence[int] | None = None,
    optimizer: str = "adamw",
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    recording: Recording | None = None,
) -> Profile:
    """Return the profile of ``model`` on ``device``, which need not be there, and is not asked if it is.

    Bytes are exact: the operators that the device would run are run on tensors without memory and counted as in
    `measure`. Times are estimates by the roofline, and marked so in every cost.

    Parameters
    ----------
    model, args, kwargs, target, loss_fn, micro_batches, optimizer, progress, recording
        As for `measure`; model and example may be on the meta device, without memory.
    calibration : Calibration, optional
        Corrects the roofline by kind of operator.

    Raises
    ------
    InputError
        If a micro-batch size, the optimizer or the loss cannot be used.
    CaptureError
        If the model cannot be recorded.
    ProfileError
        If the model raises, or reads values of tensors, or nothing in it can be trained.

    Notes
    -----
    Tensors are fakes on the CPU, for torch without CUDA cannot differentiate fakes on a GPU; attention and
    dropout are those of the device all the same. An active ``torch.autocast("cpu")`` is heeded, with the CPU's choice
    of the operators that it casts, which is close to a GPU's. Of identical layers one is timed.
    """
    example = example_of(args, kwargs, target)
    parse_optimizer(optimizer)
    trained_parameters(model)
    if recording is None:
        recording = record(model, example.args, example.kwargs)
    graph = recording.graph
    sizes = asked_sizes(micro_batches, batch_of(example, graph), graph)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = fake_twin(model, mode)
    pieces = _pieces(twin, graph)
    loss: Loss = OwnLoss() if loss_fn is None else _users(loss_fn)
    fakes = Example(*(fake_like(part, mode) for part in example))
    alike = likeness(pieces, graph)
    folding = fold(pieces, alike)
    runs: list[tuple[Footprint, Works]] = []
    for done, size in enumerate(sizes):
        if progress is not None:
            progress("running without memory", done / len(sizes))
        with mode, KeptMemory(), kernels_of(device), torch.enable_grad():
            runs.append(_run(folding, loss, resize(fakes, size, graph), twin, alike))
    found = Estimates(
        graph=graph,
        pieces=pieces,
        sizes=sizes,
        footprints=tuple(footprint for footprint, _ in runs),
        works=tuple(work for _, work in runs),
        alike=alike,
        device=device,
        calibration=calibration,
    )
    layers = profiled_layers(found, twin, OptimizerEstimate(optimizer, device, calibration, mode))
    return Profile(
        model=graph.model,
        device=device.title,
        device_memory_bytes=device.usable_bytes,
        torch=str(torch.__version__),
        dtype=main_dtype(graph.parameters),
        autocast=autocast_dtype(torch.device("cpu")),
        optimizer=optimizer,
        loss_name=loss.name if isinstance(loss, OwnLoss) else getattr(loss_fn, "__name__", type(loss_fn).__name__),
        clock="roofline" if calibration is None else f"roofline, calibrated with {calibration.origin}",
        micro_batches=sizes,
        layers=layers,
        values=profiled_values(found),
        loss=found.loss(),
        shared=shared_parameters(graph),
        forbidden_cuts=tuple(cut.position for cut in graph.forbidden_cuts),
        link_latency_ns=device.link_latency_ns.value,
        link_bytes_per_s=device.link_bytes_per_s.value,
        work=found.layer_works(),
        graph_fingerprint=graph.fingerprint,
        graph=graph,
    )


def _pieces(twin: nn.Module, graph: Graph) -> tuple[Piece, ...]:
    module = rebuild(twin, graph)
    retarget_constants(module, torch.device("cpu"))
    return pieces_of(module, graph)


def _run(
    folding: Folding, loss: Loss, example: Example, twin: nn.Module, alike: Sequence[int]
) -> tuple[Footprint, Works]:
    """Return the footprint of the chain at the size of ``example``, and the work of one piece of each kind."""
    runners = (*(Noted(piece.module) for piece in folding.folded), Noted(loss))
    noted = [replace(piece, module=runner) for piece, runner in zip(folding.folded, runners, strict=False)]
    chain = Chain(noted, runners[-1])
    with explained(chain, batch_of(example)), _without_values(chain):
        found = folding.unfolded(measure_footprint(chain, example, twin))
        if found is None:
            return _run(unfolded(folding.pieces), loss, example, twin, alike)
        stand_ins = {index: folding.stand_in(index) for index in set(alike[:-1])} | {alike[-1]: len(folding.folded)}
        return found, {index: runners[stand_ins[index]].work() for index in sorted(stand_ins)}


def _users(loss_fn: LossFunction) -> Loss:
    def loss(output: Any, target: Any) -> Tensor:
        return resolve_loss(loss_fn, output, target)

    return loss


@contextmanager
def _without_values(chain: Chain) -> Iterator[None]:
    """Explain what goes wrong because tensors have no values."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        _, index = chain.position
        where = f"layer {chain.pieces[index].name}" if index < len(chain.pieces) else "the loss"
        raise ProfileError(
            f"{where} needs the values of a tensor ({error}), and without the device there are none. Measure the "
            "model on a device, or replace what depends on values there."
        ) from error
