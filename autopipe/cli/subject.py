"""MODEL with the options beside it is what a command measures: model, example, target and loss."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from autopipe.cli.screen import Screen
from autopipe.cli.values import TensorParameter, TensorSpec
from autopipe.documents.profile import Profile
from autopipe.errors import ProfileError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from autopipe.hardware.calibration import Calibration
    from autopipe.hardware.specification import Specification


class Subject(NamedTuple):
    """What is measured, on the device where it is measured; or ``absent``, for which it is estimated."""

    model: "nn.Module"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: "Tensor | None"
    loss_fn: Callable[..., "Tensor"] | None
    absent: "Specification | None" = None
    calibration: "Calibration | None" = None
    note: str | None = None
    autocast: "torch.dtype | None" = None


def subject_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say how MODEL is called, trained and measured."""
    options = (
        click.option(
            "--input",
            "inputs",
            type=TensorParameter(),
            multiple=True,
            help="An argument of the model, drawn at random, the batch first; again for each further one, NAME= in "
            "front for keywords. Integers lie below HIGH, by default below the smallest num_embeddings.",
        ),
        click.option(
            "--target",
            metavar="SHAPE[:DTYPE[<HIGH]]",
            type=TensorParameter(),
            help="What the loss compares the output with.",
        ),
        click.option(
            "--loss",
            help="cross_entropy, mse, output or package.module:function. By default the model's own loss, else the "
            "mean of its output.",
        ),
        click.option(
            "--optimizer",
            default="adamw",
            show_default=True,
            help="A class of torch.optim, with options: sgd:momentum=0.9.",
        ),
        click.option("--dtype", help="Turn the model's parameters into this dtype first, for example bfloat16."),
        click.option("--autocast", help="Run the model under torch.autocast to this dtype, for example bfloat16."),
        click.option(
            "--device",
            help="Where to measure; by default the accelerator, else the CPU. Or a device that is not there, for which "
            "bytes are counted and times estimated without memory: h100-sxm, a100-80-sxm, ..., or a JSON file.",
        ),
        click.option(
            "--calibrate",
            type=click.Path(dir_okay=False),
            help="Correct estimated times by this measured profile, of any model.",
        ),
        click.option("--budget", type=float, default=30.0, show_default=True, help="Seconds of timing at most."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def prepare(
    spec: str,
    *,
    inputs: tuple[TensorSpec, ...],
    target: TensorSpec | None,
    loss: str | None,
    dtype: str | None,
    device: str | None,
    autocast: str | None = None,
    calibrate: str | None = None,
) -> Subject:
    """Return what MODEL ``spec`` and its options mean, moved to the device.

    Raises
    ------
    InputError
        If the model, an input, the loss or the device cannot be had.
    UsageError
        If nothing says what to call the model with, or a loss lacks its target.
    """
    import torch

    from autopipe.cli.absent import absent_device, build_without_memory, calibration_for
    from autopipe.cli.example import draw_all, dtype_of, sketch_all
    from autopipe.cli.loss import NEEDS_TARGET, resolve
    from autopipe.cli.model import build, guarded

    if loss in NEEDS_TARGET and target is None:
        raise click.UsageError(f"--loss {loss} compares the output with a target: add --target SHAPE[:DTYPE[<HIGH]].")
    if target is not None and target.name is not None:
        raise click.UsageError(f"a target has no name: write --target without {target.name}=.")
    absent = absent_device(device)
    calibration = calibration_for(calibrate, absent)
    built, note = (build(spec), None) if absent is None else build_without_memory(spec)
    if not inputs and built.args is None:
        raise click.UsageError(
            f"nothing says what to call {spec} with: add --input SHAPE[:DTYPE[<HIGH]], for example "
            "--input 8x1024:int64, or let the factory return (module, example, loss_fn)."
        )
    model, default = built.model, torch.float32
    if dtype is not None:
        default = dtype_of(dtype)
        model = model.to(default)
    loss_fn = built.loss_fn if loss is None else resolve(loss)
    lower = None if autocast is None else dtype_of(autocast)
    if absent is not None:
        args, kwargs = sketch_all(inputs, default=default) if inputs else (built.args or (), built.kwargs)
        targets, _ = sketch_all([target] if target else [], default=default)
        return Subject(model, args, kwargs, targets[0] if targets else None, loss_fn, absent, calibration, note, lower)
    args, kwargs = draw_all(inputs, model, default=default) if inputs else (built.args or (), built.kwargs)
    targets, _ = draw_all([target] if target else [], model, default=default, seed=1)
    where = _device(device)
    args, kwargs, targets = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(where), (args, kwargs, targets)
    )
    model = model.to(where)
    # What the model raises by itself is the user's to mend, and is said so before anything is measured.
    with torch.no_grad():
        guarded(lambda: model(*args, **kwargs), f"calling {spec} on its example")
    return Subject(model, args, kwargs, targets[0] if targets else None, loss_fn, autocast=lower)


def measure(
    subject: Subject,
    screen: Screen,
    *,
    micro_batches: tuple[int, ...] | str | None,
    optimizer: str,
    budget: float,
    fresh: bool = False,
    leaf: tuple[str, ...] = (),
    granularity: int | None = None,
    specialise: bool = False,
) -> Profile:
    """Return the profile of ``subject``, with a progress bar on a terminal; under torchrun, of every rank's device."""
    from autopipe.cli.model import guarded
    from autopipe.executor.launch import join_group, under_torchrun
    from autopipe.profiler import estimate
    from autopipe.profiler import measure as measure_model
    from autopipe.profiler.cache import ProfileCache, default_folder
    from autopipe.profiler.ranks import measure_ranks
    from autopipe.recorder import record

    if subject.note is not None:
        screen.say(subject.note)
    cache = ProfileCache(default_folder())
    with screen.foreign_code(), screen.progress("profile") as progress, _autocast(subject):
        recording = guarded(
            lambda: record(
                subject.model, subject.args, subject.kwargs, leaf=leaf, granularity=granularity, specialise=specialise
            ),
            "recording the model",
        )
        called = subject.model, subject.args, subject.kwargs
        asked: dict[str, Any] = {
            "target": subject.target,
            "loss_fn": subject.loss_fn,
            "micro_batches": micro_batches,
            "optimizer": optimizer,
            "progress": progress,
            "recording": recording,
        }
        if subject.absent is not None:
            if isinstance(micro_batches, str):
                raise click.UsageError("--micro-batch auto measures what fits: name sizes for a device not at hand.")
            return estimate(*called, device=subject.absent, calibration=subject.calibration, **asked)

        def own() -> Profile:
            return measure_model(*called, budget_s=budget, cache=None if fresh else cache, **asked)

        try:
            profile = measure_ranks(own, join_group()) if under_torchrun() else own()
        except KeyboardInterrupt:
            kept = "nothing was kept" if fresh else "what was measured is kept, and the same command goes on from there"
            raise ProfileError(f"interrupted while measuring: {kept}.") from None
    if cache.answered:
        screen.say("The same was measured before: this is that profile. Add --fresh to measure anew.\n")
    return profile


def _autocast(subject: Subject) -> AbstractContextManager[Any]:
    """Return the context in which the model is recorded and measured."""
    import torch

    if subject.autocast is None:
        return nullcontext()
    device = next((tensor.device for tensor in subject.model.parameters()), torch.device("cpu"))
    # Without the device, what stands for its tensors lies on the CPU.
    return torch.autocast("cpu" if subject.absent is not None else device.type, subject.autocast)


def _device(name: str | None) -> Any:
    import torch

    from autopipe.errors import InputError
    from autopipe.executor.launch import join_group, under_torchrun

    if name is None and under_torchrun():
        return join_group()
    if name is None:
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"there is no device {name!r} here ({reason}): leave --device out, or name another.") from None
    return device
