"""``autopipe report`` writes a plan as one page for the browser."""

from pathlib import Path

import click

from autopipe.cli.screen import Screen
from autopipe.documents.files import load, write_whole
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.errors import InputError


@click.command("report", short_help="Write a plan as one page for the browser.")
@click.argument("plan_file", metavar="PLAN")
@click.argument("timeline_file", metavar="[TIMELINE]", required=False)
@click.option("--profile", "profile_file", help="The plan's profile, for its heaviest layers.")
@click.option("-o", "--output", default="report.html", show_default=True, type=click.Path(dir_okay=False))
@click.option("--quiet", "-q", is_flag=True, help="Errors only.")
def command(plan_file: str, timeline_file: str | None, profile_file: str | None, output: str, quiet: bool) -> None:
    """Write PLAN, and beside it the measured TIMELINE of a step, as one self-contained page.

    \b
    autopipe report plan.json -o report.html
    autopipe report plan.json timeline.json --profile profile.json
    """
    from autopipe.planner import simulate_plan, trade_offs
    from autopipe.reporting.page import report_page

    plan = load(plan_file, Plan)
    measured = None if timeline_file is None else load(timeline_file, Timeline)
    if measured is not None and len(measured.ranks) != plan.pipeline_size:
        raise InputError(
            f"{timeline_file} has {len(measured.ranks)} ranks and {plan_file} {plan.pipeline_size}: give the timeline "
            "of a step of this plan."
        )
    profile = None if profile_file is None else load(profile_file, Profile)
    others = () if profile is None else trade_offs(plan, profile)
    page = report_page(plan, simulate_plan(plan), measured=measured, profile=profile, trade_offs=others)
    write_whole(page.encode(), output)
    Screen(json=False, quiet=quiet).say(f"Written to {output}: open it in a browser (file://{Path(output).resolve()}).")
