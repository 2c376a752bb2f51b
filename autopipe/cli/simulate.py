"""``autopipe simulate`` shows the predicted timeline of a plan, or answers a question about a schedule."""

from typing import Any

import click
import msgspec

from autopipe.cli.schedules import ScheduleName, named_or_read
from autopipe.cli.screen import Screen, screen_options
from autopipe.documents.conditions import Conditions
from autopipe.documents.files import load, write_whole
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.units import MILLISECOND, format_time

LONGEST_MS = 1e9


@click.command("simulate", short_help="Show the predicted timeline of a plan.")
@click.argument("plan_file", metavar="[PLAN]", required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the timeline here.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a Chrome trace here, for ui.perfetto.dev.")
@click.option(
    "--profile",
    "profile_file",
    metavar="FILE",
    help="With PLAN, which may be edited by hand: its costs anew, and what the best would gain.",
)
@click.option("--schedule", "name", type=ScheduleName(), help="Without PLAN: a schedule by name, or a file of one.")
@click.option("--stages", type=int, help="Its ranks, p.")
@click.option("--micro-batches", type=int, help="Its micro-batches, m.")
@click.option("--virtual", type=int, help="Stages on each rank, v.  [default: 2 for zb-v and dualpipe-v, else 1]")
@click.option("--depth", type=int, default=0, show_default=True, help="Extra warm-up forwards of 1f1b.")
@click.option("--times", multiple=True, metavar="F,I,W", help="Milliseconds; once for all stages, or once for each.")
@click.option("--link", "hop_ms", type=float, default=0.0, show_default=True, help="Milliseconds of a message.")
@click.option("--action", "action_ms", type=float, help="Milliseconds that the executor adds to every action.")
@click.option("--message", "message_ms", type=float, help="Milliseconds that starting a message keeps its sender.")
@click.option("--no-overlap", is_flag=True, help="A rank waits while what it sends occupies the link.")
@screen_options
def command(
    plan_file: str | None,
    output: str | None,
    trace: str | None,
    profile_file: str | None,
    name: str | None,
    stages: int | None,
    micro_batches: int | None,
    virtual: int | None,
    depth: int,
    times: tuple[str, ...],
    hop_ms: float,
    action_ms: float | None,
    message_ms: float | None,
    no_overlap: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the predicted timeline of PLAN, a file that `autopipe partition` wrote, or ask about a schedule.

    A plan holds what the executor itself takes, as far as its profile measured it; --action, --message and
    --no-overlap say it anew.

    \b
    autopipe simulate plan.json
    autopipe simulate --schedule 1f1b --stages 8 --micro-batches 24 \\
        --times 18.5,18.1,9.3 --link 0.6
    """
    screen = Screen(json=as_json, quiet=quiet)
    said = _conditions(action_ms, message_ms, no_overlap)
    if plan_file is not None:
        if name is not None:
            raise click.UsageError("give a PLAN or --schedule, not both.")
        _show(plan_file, profile_file, said, output, trace, screen)
        return
    if name is None or not times:
        raise click.UsageError("give a PLAN, or --schedule and --times, with --stages and --micro-batches.")
    if output is not None or trace is not None:
        raise click.UsageError("--output and --trace belong to a PLAN.")
    from autopipe.simulator.quick import quick

    schedule = named_or_read(name, stages=stages, micro_batches=micro_batches, virtual=virtual, depth=depth)
    conditions = Conditions(**said)
    answer = quick(schedule, [_parse_times(text) for text in times], hop_ms=hop_ms, conditions=conditions)
    if as_json:
        click.echo(msgspec.json.encode(answer))
        return
    screen.show(
        f"{answer.schedule}: {schedule.ranks} ranks, {answer.stages} stages, {answer.micro_batches} micro-batches.\n"
        f"Step {answer.step_ms:.3f} ms, bubble ratio {answer.bubble_ratio:.4f}, utilisation {answer.utilisation:.4f}.\n"
        f"Peak in-flight by rank: {' '.join(map(str, answer.peak_in_flight))}."
    )


def _show(
    plan_file: str,
    profile_file: str | None,
    said: dict[str, Any],
    output: str | None,
    trace: str | None,
    screen: Screen,
) -> None:
    """Show the timeline of a plan under the conditions that it holds and those ``said``; write what was asked for."""
    plan = load(plan_file, Plan)

    from autopipe.planner import rescored, simulate_plan
    from autopipe.reporting.chrome_trace import chrome_trace
    from autopipe.reporting.idle_table import idle_table, path_sentence
    from autopipe.reporting.plan_table import headline, rank_table
    from autopipe.reporting.timeline_text import timeline_text

    gain = None
    if profile_file is not None:
        plan, gain = rescored(plan, load(profile_file, Profile))
    if said:
        conditions = msgspec.structs.replace(plan.conditions or Conditions(), **said)
        plan = msgspec.structs.replace(plan, conditions=conditions)
    timeline = simulate_plan(plan)
    if said:
        screen.show(f"Under the conditions given, the step takes {format_time(timeline.step_ns)}.\n")
    screen.show(headline(plan))
    screen.show()
    screen.show(timeline_text(timeline, width=screen.width))
    screen.show()
    screen.show(rank_table(plan))
    if gain is not None:
        screen.show()
        screen.show(f"{plan.binding} {gain}")
    screen.show()
    screen.show(idle_table(timeline))
    screen.show(path_sentence(timeline))
    if trace is not None:
        write_whole(chrome_trace(timeline), trace)
        screen.say(f"\nTrace written to {trace}.")
    screen.deliver(timeline, output)


def _conditions(action_ms: float | None, message_ms: float | None, no_overlap: bool) -> dict[str, Any]:
    """Return the fields of `Conditions` that the options set."""
    said: dict[str, Any] = {"overlap": False} if no_overlap else {}
    for name, option, value in (("action_ns", "--action", action_ms), ("message_ns", "--message", message_ms)):
        if value is None:
            continue
        if not 0 <= value <= LONGEST_MS:
            raise InputError(f"{option} {value} is no time: give milliseconds from 0 to {LONGEST_MS:.0e}.")
        said[name] = round(value * MILLISECOND)
    return said


def _parse_times(text: str) -> tuple[float, float, float]:
    try:
        forward, input_grad, weight_grad = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--times {text!r} is not three numbers: write F,I,W in milliseconds, for example 18.5,18.1,9.3."
        ) from None
    return forward, input_grad, weight_grad
