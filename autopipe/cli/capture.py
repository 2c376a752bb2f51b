"""``autopipe capture`` records a model and shows its layers, what crosses between them, and what stayed whole."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autopipe.cli.screen import Screen, screen_options
from autopipe.cli.values import TensorParameter, TensorSpec
from autopipe.errors import InputError

if TYPE_CHECKING:
    from autopipe.recorder import Recording


@click.command("capture", short_help="Record a model and show its layers and legal cuts.")
@click.argument("model")
@click.option(
    "--input",
    "inputs",
    type=TensorParameter(),
    multiple=True,
    help="An argument of the model, drawn at random, the batch first; again for each further one, NAME= in front for "
    "keywords. Integers lie below HIGH, by default below the smallest num_embeddings.",
)
@click.option("--dtype", help="Turn the model's parameters into this dtype first, for example bfloat16.")
@click.option("--leaf", "leaves", multiple=True, help="Call these modules whole: a pattern of paths or class names.")
@click.option("--granularity", type=click.IntRange(min=1), help="About how many layers; by default all that there are.")
@click.option("--meta", is_flag=True, help="Build the model without its memory, on torch's meta device.")
@click.option("--specialise", is_flag=True, help="Let the model itself read values, and let the graph check them.")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare the graph with the model.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the graph here.")
@click.option("--graph", "picture", type=click.Path(dir_okay=False), help="Draw layers and legal cuts here, as SVG.")
@screen_options
def command(
    model: str,
    inputs: tuple[TensorSpec, ...],
    dtype: str | None,
    leaves: tuple[str, ...],
    granularity: int | None,
    meta: bool,
    specialise: bool,
    check: bool,
    output: str | None,
    picture: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Record MODEL and show its layers, what crosses between them, and what was called whole and why.

    MODEL is package.module:factory or path/to/file.py:factory. The factory takes no arguments and returns a
    module, or (module, example, loss_fn).

    \b
    autopipe capture mypkg.model:build --input 8x1024:int64 --graph layers.svg
    """
    screen = Screen(json=as_json, quiet=quiet)
    with screen.foreign_code():
        recording = _record(
            model,
            inputs,
            dtype,
            meta=meta,
            leaf=leaves,
            granularity=granularity,
            specialise=specialise,
            check=check,
        )

    from autopipe.reporting.graph_svg import graph_svg
    from autopipe.reporting.graph_table import graph_report

    screen.show(graph_report(recording.graph, whole=recording.demoted, unchecked=recording.unchecked))
    if picture is not None:
        _write(picture, graph_svg(recording.graph))
        screen.say(f"\nDrawn in {picture}.")
    screen.deliver(recording.graph, output)


def _record(
    spec: str,
    inputs: tuple[TensorSpec, ...],
    dtype: str | None,
    *,
    meta: bool,
    leaf: tuple[str, ...],
    granularity: int | None,
    specialise: bool,
    check: bool,
) -> "Recording":
    """Return the recording of the model that ``spec`` names.

    Raises
    ------
    UsageError
        If nothing says what to call the model with.
    InputError
        If the model or an input cannot be had.
    CaptureError
        If the model cannot be recorded.
    """
    import torch

    from autopipe.cli.example import draw_all, dtype_of
    from autopipe.cli.model import build, guarded
    from autopipe.recorder import record

    with torch.device("meta" if meta else torch.get_default_device()):
        built = build(spec)
    if not inputs and built.args is None:
        raise click.UsageError(
            f"nothing says what to call {spec} with: add --input SHAPE[:DTYPE[<HIGH]], for example "
            "--input 8x1024:int64, or let the factory return (module, example, loss_fn)."
        )
    default = torch.float32 if dtype is None else dtype_of(dtype)
    model = built.model if dtype is None else built.model.to(default)
    args, kwargs = draw_all(inputs, model, default=default) if inputs else (built.args or (), built.kwargs)
    return guarded(
        lambda: record(model, args, kwargs, leaf=leaf, granularity=granularity, specialise=specialise, check=check),
        f"recording {spec} on its example",
    )


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name a place that can.") from None
