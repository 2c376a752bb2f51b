"""``autopipe checkpoint`` looks into what a pipeline saved, and turns it into one file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autopipe.cli.screen import Screen, screen_options

if TYPE_CHECKING:
    from autopipe.checkpoints.saved import Saved
    from autopipe.reporting.checkpoint_table import Row


class CheckpointGroup(click.Group):
    """Takes no folder for a command without saying what to write."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; a folder in its place is refused with the line that was meant."""
        word = args[0]
        if word not in self.commands and not word.startswith("-") and Path(word).exists():
            raise click.UsageError(
                f"{word!r} is a place, not what to do with it: write `autopipe checkpoint inspect {word}` to look into "
                f"it, or `autopipe checkpoint convert {word} -o model.safetensors`.",
                ctx,
            )
        return super().resolve_command(ctx, args)


@click.group("checkpoint", cls=CheckpointGroup, short_help="Look into what a pipeline saved, or turn it into one file.")
def command() -> None:
    """Look into what a pipeline saved, or turn it into one file. No pipeline and no group is needed for it.

    \b
    autopipe checkpoint inspect checkpoints
    autopipe checkpoint convert checkpoints -o model.safetensors
    """


@command.command("inspect")
@click.argument("folder", metavar="DIR")
@screen_options
def inspect(folder: str, as_json: bool, quiet: bool) -> None:
    """Show what the checkpoint DIR holds, or the newest one in it.

    \b
    autopipe checkpoint inspect checkpoints
    """
    from autopipe.checkpoints.saved import Saved
    from autopipe.reporting.checkpoint_table import checkpoint_report

    screen = Screen(json=as_json, quiet=quiet)
    saved = Saved(folder)
    screen.say(f"{saved.folder}\n")
    screen.show(checkpoint_report(saved.document, _rows(saved)))
    screen.deliver(saved.document, None)


@command.command("convert")
@click.argument("folder", metavar="DIR")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="A .pt or .safetensors file.")
@click.option("--model-only", is_flag=True, help="For .pt: the model's state alone, as torch.save(model.state_dict()).")
@click.option("--quiet", "-q", is_flag=True, help="Errors only.")
def convert(folder: str, output: str, model_only: bool, quiet: bool) -> None:
    """Write the checkpoint DIR, or the newest one in it, as one file under the model's own names.

    A .safetensors file holds the model. A .pt file, which torch.load(..., weights_only=True) reads, also holds the
    optimizer's state by name, in the form of torch.distributed.checkpoint.state_dict, scheduler and scaler.

    \b
    autopipe checkpoint convert checkpoints -o model.safetensors
    """
    from autopipe.checkpoints.plain import whole_state
    from autopipe.checkpoints.saved import Saved
    from autopipe.checkpoints.whole_file import SAFETENSORS, write_object, write_state

    saved = Saved(folder)
    whole = whole_state(saved)
    if model_only or Path(output).suffix == SAFETENSORS:
        write_state(whole["model"], output)
    else:
        write_object(whole, output)
    what = "the model" if model_only or Path(output).suffix == SAFETENSORS else ", ".join(whole)
    Screen(json=False, quiet=quiet).say(f"Written to {output}: {what}, from {saved.folder}.")


def _rows(saved: "Saved") -> "list[Row]":
    """Return one row for each tensor of the model, in the order of their names."""
    from autopipe.checkpoints.saved import MODEL, OPTIMIZER
    from autopipe.reporting.checkpoint_table import Row

    sizes = {name: entry.size.numel() * entry.properties.dtype.itemsize for name, entry in saved.index.items()}
    states: dict[str, int] = {}
    for key, size in sizes.items():
        if key.startswith(OPTIMIZER):
            name = key.removeprefix(OPTIMIZER).rpartition(".")[0]
            states[name] = states.get(name, 0) + size
    rows = []
    for name in sorted(saved.names):
        entry = saved.index[MODEL + name]
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        rows.append(Row(name, tuple(entry.size), dtype, sizes[MODEL + name], states.get(name, 0)))
    return rows
