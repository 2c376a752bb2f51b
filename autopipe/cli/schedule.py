"""``autopipe schedule`` draws a schedule as a grid."""

import click

from autopipe.schedules.grid import draw
from autopipe.schedules.named import NAMES, make


@click.command("schedule", short_help="Draw a schedule as a grid.")
@click.argument("name", type=click.Choice(NAMES))
@click.option("--stages", type=int, required=True, help="Ranks of the pipeline, p.")
@click.option("--micro-batches", type=int, required=True, help="Micro-batches of one step, m.")
@click.option("--virtual", type=int, help="Stages on each rank, v.  [default: 2 for zb-v and dualpipe-v, else 1]")
@click.option("--depth", type=int, default=0, show_default=True, help="Extra warm-up forwards of 1f1b.")
@click.option("--actions", is_flag=True, help="One line of actions a rank, in order, without time.")
def command(name: str, stages: int, micro_batches: int, virtual: int | None, depth: int, actions: bool) -> None:
    """Draw a schedule as a grid: rank 0 on top, time to the right, every action one cell long.

    \b
    autopipe schedule 1f1b --stages 4 --micro-batches 8
    autopipe schedule zb-v --stages 4 --micro-batches 8 --actions
    """
    schedule = make(name, stages=stages, micro_batches=micro_batches, virtual=virtual, depth=depth)
    click.echo(schedule.to_text() if actions else draw(schedule), nl=False)
