"""``autopipe simulate`` shows the predicted timeline of a plan."""

import click

from autopipe.cli.screen import Screen, screen_options
from autopipe.documents.files import load, write_whole
from autopipe.documents.plan import Plan


@click.command("simulate", short_help="Show the predicted timeline of a plan.")
@click.argument("plan_file", metavar="PLAN")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the timeline here.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a Chrome trace here, for ui.perfetto.dev.")
@screen_options
def command(plan_file: str, output: str | None, trace: str | None, as_json: bool, quiet: bool) -> None:
    """Show the predicted timeline of PLAN, a file that `autopipe partition` wrote."""
    screen = Screen(json=as_json, quiet=quiet)
    plan = load(plan_file, Plan)

    from autopipe.planner import simulate_plan
    from autopipe.reporting.chrome_trace import chrome_trace
    from autopipe.reporting.plan_table import headline, rank_table
    from autopipe.reporting.timeline_text import timeline_text

    timeline = simulate_plan(plan)
    screen.show(headline(plan))
    screen.show()
    screen.show(timeline_text(timeline, width=screen.width))
    screen.show()
    screen.show(rank_table(plan))
    if trace is not None:
        write_whole(chrome_trace(timeline), trace)
        screen.say(f"\nTrace written to {trace}.")
    screen.deliver(timeline, output)
