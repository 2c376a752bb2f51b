"""``autopipe watch`` shows a run while it trains, from the timeline that the run writes now and then."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import click
from rich.console import Group, RenderableType
from rich.text import Text

from autopipe.cli.screen import Screen
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Timeline

POLL_S = 0.2


@click.command("watch", short_help="Show a run while it trains.")
@click.argument("timeline_file", metavar="TIMELINE")
@click.option("--plan", "plan_file", metavar="FILE", help="The plan that runs: its prediction beside what is measured.")
@click.option("--updates", type=click.IntRange(min=1), help="End after so many; by default Ctrl-C ends it.")
def command(timeline_file: str, plan_file: str | None, updates: int | None) -> None:
    """Show the newest step of a run, and anew each time that the run writes TIMELINE.

    Nothing is added to the run itself. It writes the file as often as it likes, between two steps, all ranks
    together; that is the only time that it takes:

    \b
    timeline = pipe.timeline()
    if rank == 0:
        autopipe.documents.files.save(timeline, "timeline.json")

    \b
    autopipe watch timeline.json --plan plan.json
    """
    from autopipe.reporting.shown import drawn

    plan = None if plan_file is None else load(plan_file, Plan)
    screen = Screen(json=False, quiet=False)
    with suppress(KeyboardInterrupt), screen.live() as show:
        show(Text(f"Waiting for {timeline_file}; Ctrl-C ends."))
        for count, timeline in enumerate(_written(timeline_file), start=1):
            parts: list[RenderableType] = [drawn(timeline)]
            if plan is not None:
                from autopipe.reporting.comparison import compare, comparison_table

                parts += ["", comparison_table(compare(plan, timeline))]
            show(Group(*parts, "", Text(f"Update {count}, {time.strftime('%H:%M:%S')}. Ctrl-C ends.")))
            if count == updates:
                return


def _written(path: str) -> Iterator[Timeline]:
    """Yield the timeline at ``path`` whenever another one stands there: it is renamed into place, so always whole."""
    seen = None
    while True:
        with suppress(FileNotFoundError):
            stat = os.stat(path)
            now = (stat.st_mtime_ns, stat.st_ino)
            if now != seen:
                seen = now
                yield load(path, Timeline)
        time.sleep(POLL_S)
