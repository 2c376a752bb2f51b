"""The options by which a user takes choices out of the planner's hand."""

from collections.abc import Callable
from typing import Any

import click


def wish_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that fix choices of a plan; together they are the keywords of `planner.Request`."""
    options = (
        click.option("--replicas", type=click.IntRange(min=1), help="Copies of the pipeline; chosen if not given."),
        click.option("--virtual", type=click.IntRange(min=1), help="Stages of each rank; chosen if not given."),
        click.option(
            "--recompute",
            default="auto",
            show_default=True,
            help="Layers that recompute: auto, none, all, or patterns of names with commas between.",
        ),
        click.option("--pin", "pins", multiple=True, metavar="LAYERS=STAGE", help="Stage of layers; -1: the last."),
        click.option("--forbid-cut", "forbidden_cuts", multiple=True, metavar="LAYERS", help="No stage begins there."),
        click.option(
            "--together",
            multiple=True,
            metavar="MODULES",
            help="Keep each module (blocks.*) whole on one rank, or layers with commas between on the same one.",
        ),
        click.option("--tied-together", is_flag=True, help="Keep layers that share a parameter on one rank."),
        click.option(
            "--solver",
            "engine",
            type=click.Choice(["highs", "scipy", "cbc"]),
            default="highs",
            show_default=True,
            help="What solves the integer programmes; the others stand in for one that fails.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
