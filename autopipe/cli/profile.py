"""``autopipe profile`` measures time and memory of every layer of a model."""

import os
from typing import Any

import click

from autopipe.cli.screen import Screen, screen_options
from autopipe.cli.subject import measure, prepare, subject_options
from autopipe.cli.values import MicroBatchesParameter
from autopipe.documents.files import load
from autopipe.documents.profile import Profile


@click.command("profile", short_help="Measure time and memory of every layer of a model.")
@click.argument("model", required=False)
@subject_options
@click.option(
    "--micro-batch",
    "micro_batches",
    type=MicroBatchesParameter(),
    help="Sizes to measure, in samples, for example 1,2,4; by default the input's batch, its half and its quarter. "
    "auto: powers of two, from the largest that fits and still saves time for a sample down.",
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False),
    metavar="A.json B.json",
    help="Measure nothing: lay two profiles of one model side by side.",
)
@click.option("--fresh", is_flag=True, help="Measure anew, even if the same question was answered before.")
@click.option("--leaf", "leaves", multiple=True, help="Call these modules whole: a pattern of paths or class names.")
@click.option("--granularity", type=click.IntRange(min=1), help="About how many layers; by default all that there are.")
@click.option("--specialise", is_flag=True, help="Let the model itself read values, and let the graph check them.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the profile here.")
@screen_options
def command(
    model: str | None,
    micro_batches: tuple[int, ...] | str | None,
    compare: tuple[str, str] | None,
    fresh: bool,
    leaves: tuple[str, ...],
    granularity: int | None,
    specialise: bool,
    optimizer: str,
    budget: float,
    output: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure time and memory of every layer of MODEL on the device at hand.

    Under torchrun every rank measures its own device and its links to the others, and the first one writes.

    MODEL is package.module:factory or path/to/file.py:factory. The factory takes no arguments and returns a
    module, or (module, example, loss_fn).

    \b
    autopipe profile mypkg.model:build --input 8x1024:int64 \\
        --loss cross_entropy --target 8x1024:int64 -o profile.json
    autopipe profile big.py:build --input 1x4096:int64 \\
        --device h100-sxm --dtype bfloat16 -o profile.json
    """
    # Under torchrun all ranks measure, and the first one speaks.
    is_first = os.environ.get("RANK", "0") == "0"
    screen = Screen(json=as_json, quiet=quiet or not is_first)
    if compare is not None:
        from autopipe.reporting.profile_comparison import profile_comparison

        screen.show(profile_comparison(*(load(path, Profile) for path in compare)))
        return
    if model is None:
        raise click.UsageError("nothing says what to measure: name MODEL, or two profiles with --compare.")
    with screen.foreign_code():
        subject = prepare(model, **options)
    profile = measure(
        subject,
        screen,
        micro_batches=micro_batches,
        optimizer=optimizer,
        budget=budget,
        leaf=leaves,
        granularity=granularity,
        specialise=specialise,
        fresh=fresh,
    )

    if not is_first:
        return

    from autopipe.reporting.profile_table import profile_report

    screen.show(profile_report(profile))
    screen.deliver(profile, output)
