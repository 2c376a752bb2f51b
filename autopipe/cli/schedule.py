"""``autopipe schedule`` draws a schedule as a grid."""

import click

from autopipe.cli.schedules import ScheduleName, named_or_read
from autopipe.cli.screen import write
from autopipe.schedules.csv import to_csv
from autopipe.schedules.grid import draw


@click.command("schedule", short_help="Draw a schedule as a grid.")
@click.argument("name", type=ScheduleName(), metavar="NAME|FILE")
@click.option("--stages", type=int, help="Ranks of the pipeline, p.")
@click.option("--micro-batches", type=int, help="Micro-batches of one step, m.")
@click.option("--virtual", type=int, help="Stages on each rank, v.  [default: 2 for zb-v and dualpipe-v, else 1]")
@click.option("--depth", type=int, default=0, show_default=True, help="Extra warm-up forwards of 1f1b.")
@click.option("--actions", "form", flag_value="actions", help="One line of actions a rank, in order, without time.")
@click.option("--csv", "form", flag_value="csv", help="The same as torch.distributed.pipelining reads it.")
def command(
    name: str, stages: int | None, micro_batches: int | None, virtual: int | None, depth: int, form: str | None
) -> None:
    """Draw a schedule as a grid: rank 0 on top, time to the right, every action one cell long.

    FILE is a schedule of your own, one line per rank, as --actions or --csv write it; it is checked first.

    \b
    autopipe schedule 1f1b --stages 4 --micro-batches 8
    autopipe schedule zb-v --stages 4 --micro-batches 8 --actions
    autopipe schedule mine.csv
    """
    schedule = named_or_read(name, stages=stages, micro_batches=micro_batches, virtual=virtual, depth=depth)
    text = {"actions": schedule.to_text, "csv": lambda: to_csv(schedule)}.get(form or "", lambda: draw(schedule))()
    write(text)
