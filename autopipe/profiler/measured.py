"""A model is measured on the device at hand: time and memory of every layer, at several micro-batch sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.documents.graph import Parameter
from autopipe.documents.profile import Profile
from autopipe.errors import InputError, ProfileError
from autopipe.profiler.assemble import (
    Measurements,
    profiled_layers,
    profiled_values,
    shared_parameters,
    whole_steps,
)
from autopipe.profiler.device import device_memory, device_name, device_of
from autopipe.profiler.example import asked_sizes, batch_of, resize
from autopipe.profiler.failures import explained
from autopipe.profiler.footprint import Footprint, measure_footprint
from autopipe.profiler.layers import Chain, Example, pieces_of, recomputing
from autopipe.profiler.load import ForeignLoad
from autopipe.profiler.loss import choose_loss
from autopipe.profiler.optimizer import OptimizerMeter, parse_optimizer
from autopipe.profiler.rounds import Rounds
from autopipe.profiler.timer import Progress, choose_clock, repeat
from autopipe.recorder import Recording, record
from autopipe.recorder.snapshot import preserved
from autopipe.stages.loss import LossFunction


def measure(
    model: nn.Module,
    args: Sequence[Any] | Tensor,
    kwargs: dict[str, Any] | None = None,
    *,
    target: Any = None,
    loss_fn: LossFunction | None = None,
    micro_batches: Sequence[int] | None = None,
    optimizer: str = "adamw",
    budget_s: float = 30.0,
    progress: Progress | None = None,
    recording: Recording | None = None,
) -> Profile:
    """Return the profile of ``model`` on the device that it is on.

    The model is run on the example and on batches made in its image, and left as it was: parameters,
    buffers, gradients, mode and random state are put back.

    Parameters
    ----------
    args, kwargs : tuple and dict
        An example batch: the arguments of ``model``, tensors with the samples along their first dimension.
    target : any
        What the loss function compares the output with.
    loss_fn : callable
        A function of (output, target) that returns a scalar. Default: the output's ``loss`` or the output
        itself if that is a scalar, else the mean of its first floating-point tensor.
    micro_batches : sequence of int
        Sizes to measure, in samples. Default: the example's batch, its half and its quarter.
    optimizer : str
        A class of ``torch.optim``, with options: ``adamw``, ``sgd:momentum=0.9``.
    budget_s : float
        Seconds after which no new round of timing begins; steady timings end sooner.
    progress : callable
        Called with what is being done and the share in [0, 1] of it that is over.
    recording : Recording
        The model as recorded before; by default it is recorded first.

    Raises
    ------
    InputError
        If a micro-batch size, the optimizer or the loss cannot be used.
    CaptureError
        If the model cannot be recorded.
    ProfileError
        If the model raises, runs out of memory, or nothing in it can be trained.

    Notes
    -----
    Layers are timed in place, one after the other on real values, detached at their boundaries; medians over
    rounds, identical layers pooled. Between layers where no cut is legal, all cost is booked to the first.
    """
    example = Example((args,) if isinstance(args, Tensor) else tuple(args), dict(kwargs or {}), target)
    if budget_s < 0:
        raise InputError(f"a budget of {budget_s} s is no time: give at least 0, for a single round.")
    parse_optimizer(optimizer)
    if recording is None:
        recording = record(model, example.args, example.kwargs)
    sizes = asked_sizes(micro_batches, batch_of(example), recording.graph)
    with preserved(model), torch.enable_grad():
        _allocate_gradients(model)
        return _measure(
            model,
            example,
            recording,
            sizes=sizes,
            loss_fn=loss_fn,
            optimizer=optimizer,
            budget_s=budget_s,
            progress=progress,
        )


def _measure(
    model: nn.Module,
    example: Example,
    recording: Recording,
    *,
    sizes: tuple[int, ...],
    loss_fn: LossFunction | None,
    optimizer: str,
    budget_s: float,
    progress: Progress | None,
) -> Profile:
    graph, device = recording.graph, device_of(model, example)
    clock = choose_clock(device)
    load = ForeignLoad()
    meter = OptimizerMeter(optimizer, device, clock)
    with explained(None, batch_of(example)):
        loss, loss_name = choose_loss(loss_fn, model, example)
    chain = Chain(pieces_of(recording.module, graph), loss)
    examples, footprints = _footprints(chain, example, sizes, model, progress)
    able = [index for index in range(len(chain.pieces)) if all(one.recomputed[index] for one in footprints)]
    again = recomputing(recording.module, graph, chain.pieces, able)
    rounds = Rounds(chain, model, loss, examples, graph, clock, again=again)
    with explained(None, max(sizes)):
        samples = repeat(rounds.one_round, budget_s=budget_s, progress=progress, label="measuring time")
    times = rounds.times(samples)
    found = Measurements(graph=graph, pieces=chain.pieces, sizes=sizes, times=times, footprints=footprints)
    layers = profiled_layers(found, model, meter)
    return Profile(
        model=graph.model,
        device=device_name(device),
        device_memory_bytes=device_memory(device),
        torch=str(torch.__version__),
        dtype=main_dtype(graph.parameters),
        autocast=_autocast(device),
        optimizer=optimizer,
        loss_name=loss_name,
        clock=clock.name,
        foreign_load=load.share(),
        micro_batches=sizes,
        layers=layers,
        values=profiled_values(found),
        loss=found.loss(),
        shared=shared_parameters(graph),
        forbidden_cuts=tuple(cut.position for cut in graph.forbidden_cuts),
        whole=whole_steps(found, layers),
        graph_fingerprint=graph.fingerprint,
        graph=graph,
    )


def _footprints(
    chain: Chain, example: Example, sizes: tuple[int, ...], model: nn.Module, progress: Progress | None
) -> tuple[dict[int, Example], tuple[Footprint, ...]]:
    """Return the example at every size and its footprint, largest first: where memory runs out, it does at once."""
    examples: dict[int, Example] = {}
    footprints: dict[int, Footprint] = {}
    for done, size in enumerate(reversed(sizes)):
        if progress is not None:
            progress("measuring memory", done / len(sizes))
        with explained(chain, size):
            examples[size] = resize(example, size)
            footprints[size] = measure_footprint(chain, examples[size], model)
    return examples, tuple(footprints[size] for size in sizes)


def _allocate_gradients(model: nn.Module) -> None:
    """Give every trainable parameter a gradient to add to.

    In training, all micro-batches but the first add to gradients that are there: this is what is measured.

    Raises
    ------
    ProfileError
        If nothing can be trained.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ProfileError(
            "no parameter of the model requires a gradient, so there is no training step to measure. "
            "Set requires_grad on those that are to be trained."
        )
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)


def main_dtype(parameters: Sequence[Parameter]) -> str:
    """Return the dtype that most bytes of the parameters have."""
    total: dict[str, int] = {}
    for parameter in parameters:
        if not parameter.is_buffer:
            total[parameter.dtype] = total.get(parameter.dtype, 0) + parameter.bytes
    return max(total, key=total.__getitem__)


def _autocast(device: torch.device) -> str | None:
    if not torch.is_autocast_enabled(device.type):
        return None
    return str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
