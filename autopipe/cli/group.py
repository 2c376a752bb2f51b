"""The group of all commands knows their names and one line about each; their modules are loaded when called."""

from importlib import import_module
from typing import NamedTuple

import click

from autopipe import __version__


class Entry(NamedTuple):
    """Where a command is, and what it does in one line."""

    module: str
    summary: str


SECTIONS = {
    "From model to plan": (
        ("capture", Entry("autopipe.cli.capture", "Record a model and show its layers and legal cuts.")),
        ("profile", Entry("autopipe.cli.profile", "Measure time and memory of every layer of a model.")),
        ("partition", Entry("autopipe.cli.partition", "Plan stages, micro-batches and schedule for a number of GPUs.")),
    ),
    "See a plan": (
        ("simulate", Entry("autopipe.cli.simulate", "Show the predicted timeline of a plan.")),
        ("report", Entry("autopipe.cli.report", "Write a plan as one page for the browser, or as a picture.")),
        ("schedule", Entry("autopipe.cli.schedule", "Draw a schedule as a grid.")),
    ),
    "Run it": (
        ("verify", Entry("autopipe.cli.verify", "Compare a pipeline's gradients with the plain model's.")),
        ("bench", Entry("autopipe.cli.bench.command", "Run a plan on this machine, predicted beside measured.")),
        ("watch", Entry("autopipe.cli.watch", "Show a run while it trains.")),
        ("checkpoint", Entry("autopipe.cli.checkpoint", "Look into what a pipeline saved, or turn it into one file.")),
        ("export", Entry("autopipe.cli.export", "Write a plan for another runtime.")),
    ),
    "This machine": (
        ("doctor", Entry("autopipe.cli.doctor.command", "Look for what would keep training from working here.")),
        (
            "demo",
            Entry("autopipe.cli.demo.command", "Train a small GPT on two local processes, from profile to proof."),
        ),
    ),
}
COMMANDS = tuple(entry for section in SECTIONS.values() for entry in section)


class LazyGroup(click.Group):
    """A group whose help needs no command's module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the work."""
        return [name for name, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command called ``cmd_name``; None where there is none."""
        entry = dict(COMMANDS).get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(entry.module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        for section, entries in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, entry.summary) for name, entry in entries])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="autopipe")
@click.option("--traceback", is_flag=True, help="Show where an error was raised (write it before the command).")
@click.pass_context
def autopipe(context: click.Context, traceback: bool) -> None:
    """Train an ordinary PyTorch model as a pipeline over several devices.

    \b
    autopipe profile mypkg.model:build --input 8x1024:int64 -o profile.json
    autopipe partition profile.json --gpus 8 --batch 256 -o plan.json
    autopipe simulate plan.json

    Options that are always the same can stand in autopipe.toml, or in pyproject.toml under [tool.autopipe], a table
    for each command; what is written on the command line wins.

    Completion in bash: eval "$(_AUTOPIPE_COMPLETE=bash_source autopipe)"; zsh_source and fish_source in the others.
    """
    from autopipe.cli.settings import defaults

    if context.invoked_subcommand is not None:
        context.default_map = defaults(context.invoked_subcommand, context)
