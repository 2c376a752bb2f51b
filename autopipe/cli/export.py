"""``autopipe export`` writes a plan in the words of another runtime."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autopipe.cli.screen import Screen, write
from autopipe.documents.files import load, write_whole
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.units import format_time

if TYPE_CHECKING:
    from autopipe.exporters.export import File

TARGETS = ("torch", "torchtitan", "megatron", "deepspeed", "accelerate", "transformers")


@click.command("export", short_help="Write a plan for another runtime.")
@click.argument("plan_file", metavar="PLAN")
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="The runtime.")
@click.option(
    "--profile",
    "profile_file",
    metavar="FILE",
    help="The plan's profile, for runtimes that cannot cut or run as the plan says.",
)
@click.option("--model", help="For torch: path/to/file.py:factory, a factory of (model, example, loss_fn).")
@click.option("-o", "--output", type=click.Path(file_okay=False), help="Write the files into this folder.")
@click.option("--quiet", "-q", is_flag=True, help="The files only, no remarks.")
def command(
    plan_file: str, target: str, profile_file: str | None, model: str | None, output: str | None, quiet: bool
) -> None:
    """Write PLAN, a file that `autopipe partition` wrote, in the words of another runtime.

    Files go to stdout, or into a folder with -o; what the runtime cannot express is said on stderr.

    \b
    autopipe export plan.json --to megatron --profile profile.json
    autopipe export plan.json --to torch --model model.py:build -o .
    """
    from autopipe.exporters.named import export

    screen = Screen(json=True, quiet=quiet)
    plan = load(plan_file, Plan)
    profile = None if profile_file is None else load(profile_file, Profile)
    where = plan_file if output is None else str(Path(plan_file).resolve())
    result = export(plan, target, profile=profile, plan_file=where, model=model)
    if output is None:
        write("\n".join(file.text for file in result.files))
    else:
        for path in write_files(result.files, Path(output)):
            screen.say(f"Written to {path}.")
    screen.say(
        f"Predicted step {format_time(result.step_ns)}; the plan on our own executor: {format_time(plan.step_ns)}."
    )
    for note in result.notes:
        screen.say(f"- {note}")


def write_files(files: "tuple[File, ...]", folder: Path) -> tuple[Path, ...]:
    """Write ``files`` into ``folder``, which is made where it is not there, and return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}): give another.") from error
    for file in files:
        write_whole(file.text.encode(), folder / file.name)
    return tuple(folder / file.name for file in files)
