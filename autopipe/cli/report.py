"""``autopipe report`` writes a plan as one page for the browser, or its timeline or memory as a picture."""

from pathlib import Path

import click

from autopipe.cli.screen import Screen
from autopipe.documents.files import load, write_whole
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.errors import InputError

PICTURES = (".svg", ".png", ".pdf")


@click.command("report", short_help="Write a plan as one page for the browser, or as a picture.")
@click.argument("plan_file", metavar="PLAN")
@click.argument("timeline_file", metavar="[TIMELINE]", required=False)
@click.option(
    "--profile",
    "profile_file",
    metavar="FILE",
    help="The plan's profile: the page then has its heaviest layers, and the step under other micro-batch sizes and "
    "schedules.",
)
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False),
    help="A page, or a picture where the name ends in .svg, .png or .pdf.",
)
@click.option("--picture", type=click.Choice(["timeline", "memory"]), help="What a picture shows.  [default: timeline]")
@click.option("--quiet", "-q", is_flag=True, help="Errors only.")
def command(
    plan_file: str,
    timeline_file: str | None,
    profile_file: str | None,
    output: str,
    picture: str | None,
    quiet: bool,
) -> None:
    """Write PLAN, and beside it the measured TIMELINE of a step, as one self-contained page.

    PLAN is a file that `autopipe partition` wrote, TIMELINE one that `autopipe bench` or Pipeline.timeline() gave.
    A picture for a paper is drawn by matplotlib: pip install 'torch-autopipe[pictures]'.

    \b
    autopipe report plan.json -o report.html
    autopipe report plan.json timeline.json --profile profile.json
    autopipe report plan.json --picture memory -o memory.svg
    """
    is_picture = output.lower().endswith(PICTURES)
    if picture is not None and not is_picture:
        raise click.UsageError(
            f"--picture writes a file whose name ends in {', '.join(PICTURES)}: add -o {picture}.svg."
        )
    plan = load(plan_file, Plan)
    measured = None if timeline_file is None else load(timeline_file, Timeline)
    if measured is not None and len(measured.ranks) != plan.pipeline_size:
        raise InputError(
            f"{timeline_file} has {len(measured.ranks)} ranks and {plan_file} {plan.pipeline_size}: give the timeline "
            "of a step of this plan."
        )
    screen = Screen(json=False, quiet=quiet)
    if is_picture:
        write_whole(_picture(plan, measured, picture or "timeline", output), output)
        screen.say(f"Written to {output}.")
        return
    profile = None if profile_file is None else load(profile_file, Profile)
    write_whole(_page(plan, measured, profile).encode(), output)
    screen.say(f"Written to {output}: open it in a browser (file://{Path(output).resolve()}).")


def _page(plan: Plan, measured: Timeline | None, profile: Profile | None) -> str:
    from autopipe.planner import simulate_plan, trade_offs
    from autopipe.reporting.page import report_page

    others = () if profile is None else trade_offs(plan, profile)
    return report_page(plan, simulate_plan(plan), measured=measured, profile=profile, trade_offs=others)


def _picture(plan: Plan, measured: Timeline | None, what: str, output: str) -> bytes:
    from autopipe.planner import simulate_plan
    from autopipe.reporting.pictures import memory_picture, timeline_picture

    suffix = Path(output).suffix.lower().removeprefix(".")
    if what == "memory":
        return memory_picture(plan, measured, format=suffix)
    timelines = [("predicted", simulate_plan(plan))]
    if measured is not None:
        timelines.append(("measured", measured))
    return timeline_picture(timelines, format=suffix)
