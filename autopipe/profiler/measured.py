"""A model is measured on the device at hand: time and memory of every layer, at several micro-batch sizes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.hardware.heap import keep_freed_memory
from autopipe.profiler.assemble import (
    Measurements,
    profiled_layers,
    profiled_values,
    shared_parameters,
    whole_steps,
)
from autopipe.profiler.cache import Notes, ProfileCache, question_of
from autopipe.profiler.counting import count_work
from autopipe.profiler.device import device_memory, device_name, device_of, free_memory
from autopipe.profiler.example import asked_sizes, batch_of, resize
from autopipe.profiler.failures import explained
from autopipe.profiler.fitting import Trial, fitting_sizes
from autopipe.profiler.footprint import Footprint, measure_footprint
from autopipe.profiler.layers import Chain, Example, Loss, pieces_of, recomputing
from autopipe.profiler.load import ForeignLoad
from autopipe.profiler.loss import choose_loss
from autopipe.profiler.memory import StorageLedger
from autopipe.profiler.optimizer import OptimizerMeter, parse_optimizer
from autopipe.profiler.rounds import Rounds
from autopipe.profiler.subject import autocast_dtype, example_of, main_dtype, trained_parameters
from autopipe.profiler.timer import Progress, Samples, choose_clock, repeat
from autopipe.recorder import Recording, record
from autopipe.recorder.example import tensors
from autopipe.recorder.snapshot import preserved
from autopipe.stages.loss import LossFunction

LONGEST_S = 86_400.0
AUTO = "auto"
UPDATE_FACTOR = 4  # parameters, gradients and, of most optimizers, two moments
# Names what a profile holds: one that was kept by a version that measured less answers no question of today.
_CONTENTS = "times, memory, work"


def measure(
    model: nn.Module,
    args: Sequence[Any] | Tensor,
    kwargs: dict[str, Any] | None = None,
    *,
    target: Any = None,
    loss_fn: LossFunction | None = None,
    micro_batches: Sequence[int] | str | None = None,
    optimizer: str = "adamw",
    budget_s: float = 30.0,
    progress: Progress | None = None,
    recording: Recording | None = None,
    cache: ProfileCache | None = None,
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
    micro_batches : sequence of int or "auto"
        Sizes to measure, in samples. Default: the example's batch, its half and its quarter. With "auto" powers
        of two, from the largest that fits and still saves time for a sample down.
    optimizer : str
        A class of ``torch.optim``, with options: ``adamw``, ``sgd:momentum=0.9``.
    budget_s : float
        Seconds after which no new round of timing begins; steady timings end sooner.
    progress : callable
        Called with what is being done and the share in [0, 1] of it that is over.
    recording : Recording
        The model as recorded before; by default it is recorded first.
    cache : ProfileCache
        Where the same question may have been answered before, or begun to be: an interrupt loses nothing then.

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
    Layers are timed in place, on real values, while the undivided step runs; medians over rounds, identical layers
    pooled. Between layers where no cut is legal, all cost is booked to the first.
    """
    example = example_of(args, kwargs, target)
    if budget_s < 0:
        raise InputError(f"a budget of {budget_s} s is no time: give at least 0, for a single round.")
    if budget_s > LONGEST_S:
        raise InputError(
            f"a budget of {budget_s:g} s is more than a day, and timings are steady long before: give less."
        )
    parse_optimizer(optimizer)
    if recording is None:
        with explained(None, batch_of(example)):
            recording = record(model, example.args, example.kwargs)
    if micro_batches != AUTO:
        assert not isinstance(micro_batches, str)
        asked_sizes(micro_batches, batch_of(example, recording.graph), recording.graph)
    question = _question(model, example, recording, loss_fn, micro_batches, optimizer)
    known = None if cache is None else cache.answer(question)
    if known is not None:
        return known
    subject = _Subject(model=model, example=example, recording=recording, optimizer=optimizer)
    with preserved(model), torch.enable_grad():
        _allocate_gradients(model)
        with explained(None, batch_of(example, recording.graph)):
            loss, loss_name = choose_loss(loss_fn, model, example)
        sizes = _sizes(subject, loss, micro_batches)
        notebook = _Notebook(cache, question)
        profile = _measure(subject, loss, loss_name, sizes, notebook, budget_s=budget_s, progress=progress)
    if cache is not None:
        cache.keep(question, profile)
    return profile


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is measured."""

    model: nn.Module
    example: Example
    recording: Recording
    optimizer: str


class _Notebook:
    """What has been measured of one question so far, on disk where there is a cache."""

    def __init__(self, cache: ProfileCache | None, question: str) -> None:
        self._cache, self._question = cache, question
        notes = Notes() if cache is None else cache.notes(question)
        self.footprints = dict(notes.footprints)
        self.samples = Samples(notes.pools, notes.rounds)

    def save(self) -> None:
        """Write it down."""
        if self._cache is not None:
            notes = Notes(footprints=self.footprints, pools=self.samples.pools, rounds=self.samples.rounds)
            self._cache.note(self._question, notes)


def _measure(
    subject: _Subject,
    loss: Loss,
    loss_name: str,
    sizes: tuple[int, ...],
    notebook: _Notebook,
    *,
    budget_s: float,
    progress: Progress | None,
) -> Profile:
    model, graph = subject.model, subject.recording.graph
    device = device_of(model, subject.example)
    if device.type == "cpu":
        keep_freed_memory()
    clock = choose_clock(device)
    load = ForeignLoad()
    trained_bytes = sum(parameter.nbytes for parameter in trained_parameters(model))
    meter = OptimizerMeter(subject.optimizer, device, clock, touched_bytes=UPDATE_FACTOR * trained_bytes)
    chain = Chain(pieces_of(subject.recording.module, graph), loss)
    examples, footprints = _footprints(chain, subject, sizes, notebook, progress)
    able = [index for index in range(len(chain.pieces)) if all(one.recomputed[index] for one in footprints)]
    again = recomputing(subject.recording.module, graph, chain.pieces, able)
    rounds = Rounds(chain, model, loss, examples, graph, clock, again=again)
    try:
        with explained(None, max(sizes)):
            repeat(
                rounds.one_round,
                budget_s=budget_s,
                before=notebook.samples,
                progress=progress,
                label="measuring time",
            )
    finally:
        notebook.save()
    times = rounds.times(notebook.samples)
    found = Measurements(graph=graph, pieces=chain.pieces, sizes=sizes, times=times, footprints=footprints)
    layers = profiled_layers(found, model, meter)
    with explained(chain, max(sizes)):
        work = [count_work(chain, examples[size], graph, size) for size in sizes]
    return Profile(
        model=graph.model,
        device=device_name(device),
        device_memory_bytes=device_memory(device),
        torch=str(torch.__version__),
        dtype=main_dtype(graph.parameters),
        autocast=autocast_dtype(device),
        optimizer=subject.optimizer,
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
        work=tuple(one for works in work for one in works),
        graph_fingerprint=graph.fingerprint,
        graph=graph,
    )


def _footprints(
    chain: Chain, subject: _Subject, sizes: tuple[int, ...], notebook: _Notebook, progress: Progress | None
) -> tuple[dict[int, Example], tuple[Footprint, ...]]:
    """Return the example at every size and its footprint, largest first: where memory runs out, it does at once."""
    examples: dict[int, Example] = {}
    for done, size in enumerate(reversed(sizes)):
        if progress is not None:
            progress("measuring memory", done / len(sizes))
        with explained(chain, size):
            examples[size] = resize(subject.example, size, subject.recording.graph)
            if size not in notebook.footprints:
                notebook.footprints[size] = measure_footprint(chain, examples[size], subject.model)
                notebook.save()
    return examples, tuple(notebook.footprints[size] for size in sizes)


def _sizes(subject: _Subject, loss: Loss, asked: Sequence[int] | str | None) -> tuple[int, ...]:
    """Return the micro-batch sizes to measure, ascending."""
    graph = subject.recording.graph
    batch = batch_of(subject.example, graph)
    if not isinstance(asked, str):
        return asked_sizes(asked, batch, graph)
    if not graph.batch_is_free:
        return (batch,)
    device = device_of(subject.model, subject.example)

    def attempt(size: int) -> Trial:
        with explained(None, size):
            example = resize(subject.example, size, graph)
            step_ns = 0
            for _ in range(2):
                with StorageLedger() as ledger:
                    begin = time.perf_counter_ns()
                    loss(subject.model(*example.args, **example.kwargs), example.target).backward()
                    if device.type != "cpu":
                        torch.accelerator.synchronize(device)
                    step_ns = time.perf_counter_ns() - begin
            return Trial(step_ns, ledger.peak_bytes)

    return fitting_sizes(attempt, room_bytes=free_memory(device))


def _question(
    model: nn.Module,
    example: Example,
    recording: Recording,
    loss_fn: LossFunction | None,
    micro_batches: Sequence[int] | str | None,
    optimizer: str,
) -> str:
    """Return a name for all that the answer depends on, but for the time that it is given."""
    device = device_of(model, example)
    shapes = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors(tuple(example))]
    loss = None if loss_fn is None else (getattr(loss_fn, "__module__", ""), getattr(loss_fn, "__qualname__", ""))
    modes = [module.training for module in model.modules()]
    asked = micro_batches if micro_batches is None or isinstance(micro_batches, str) else tuple(micro_batches)
    where = device_name(device), str(torch.__version__), autocast_dtype(device)
    return question_of(_CONTENTS, recording.graph.fingerprint, shapes, loss, modes, asked, optimizer, where)


def _allocate_gradients(model: nn.Module) -> None:
    """Give every trainable parameter a gradient to add to.

    In training, all micro-batches but the first add to gradients that are there: this is what is measured.
    """
    for parameter in trained_parameters(model):
        parameter.grad = torch.zeros_like(parameter)
