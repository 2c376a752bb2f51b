"""``autopipe partition`` plans stages, micro-batches and schedule for a number of GPUs."""

from pathlib import Path
from typing import Any

import click

from autopipe.cli.imported import StagesParameter, partition_graph
from autopipe.cli.screen import Screen, screen_options
from autopipe.cli.subject import measure, prepare, subject_options
from autopipe.cli.values import SizeParameter
from autopipe.cli.wishes import wish_options
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import InputError

MICROSECOND_NS = 1000
WISHES = ("replicas", "virtual", "recompute", "pins", "forbidden_cuts", "together", "tied_together", "engine")


@click.command("partition", short_help="Plan stages, micro-batches and schedule for a number of GPUs.")
@click.argument("source", metavar="PROFILE_OR_MODEL")
@click.option("--gpus", type=click.IntRange(min=1), help="Devices to plan for.")
@click.option(
    "--cluster",
    help="The devices and their links: a JSON file, or a line such as 2x8:h100-sxm:net=50GB/s for 2 machines of 8, "
    "4:a100-80-sxm+4:v100-32:net=25GB/s for unequal ones.",
)
@click.option("--batch", type=click.IntRange(min=1), help="Samples of one step, over all devices.")
@click.option(
    "--memory", type=SizeParameter(), help="Limit of each device, for example 80GiB; else the profiled one's."
)
@click.option("--micro-batch", type=click.IntRange(min=1), help="Samples of one micro-batch; chosen if not given.")
@click.option("--schedule", help="For example gpipe or 1f1b; chosen if not given.")
@click.option("--stages", type=StagesParameter(), help="Stages of the pipeline; chosen if not given.")
@click.option("--bandwidth", type=SizeParameter(), help="Of the link between neighbours, a second: for example 25GB.")
@click.option("--latency-us", type=click.FloatRange(min=0), help="Of the link between neighbours, in microseconds.")
@click.option("--time-limit", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to search.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["bench", "pipedream", "csv"]),
    help="Plan a graph that other tools profiled: a plan-bench/1 JSON, PipeDream's graph.txt or a CSV of layers.",
)
@click.option("--objective", type=click.Choice(["step", "bottleneck"]), help="A graph of --format has its bottleneck.")
@click.option("--assignment", type=click.Path(dir_okay=False), help="With --format: write node -> stage here as JSON.")
@wish_options
@click.option("--write-lp", "lp_file", type=click.Path(dir_okay=False), help="Write the plan's programme: .lp or .mps.")
@subject_options
@click.option(
    "--emit",
    type=click.Path(file_okay=False),
    help="Write the stages into this folder as a Python package, a class and a file for each.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the plan here.")
@screen_options
def command(
    source: str,
    gpus: int | None,
    cluster: str | None,
    batch: int | None,
    memory: int | None,
    micro_batch: int | None,
    schedule: str | None,
    stages: int | None,
    bandwidth: int | None,
    latency_us: float | None,
    time_limit: float,
    format_: str | None,
    objective: str | None,
    assignment: str | None,
    lp_file: str | None,
    emit: str | None,
    output: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Plan stages, micro-batches and schedule for a number of GPUs, within their memory.

    PROFILE_OR_MODEL is a file that `autopipe profile` wrote, or MODEL as there, which is profiled first with
    the options from --input to --budget. With --format it is another planner's graph, which is cut into the
    convex stages with the least bottleneck; devices and memory are then by default the file's.

    \b
    autopipe partition profile.json --gpus 8 --batch 256 -o plan.json
    autopipe partition profile.json --gpus 8 --batch 256 \\
        --memory 24GiB --micro-batch 4
    autopipe partition profile.json --gpus 8 --batch 256 --emit stages
    """
    screen = Screen(json=as_json, quiet=quiet)
    if format_ is not None:
        if objective == "step":
            raise click.UsageError("a graph of --format is planned for its bottleneck alone: leave --objective out.")
        partition_graph(
            source,
            format=format_,
            gpus=gpus,
            memory=memory,
            stages=stages,
            micro_batches=batch,
            bandwidth=bandwidth,
            time_limit=time_limit,
            output=output,
            assignment=assignment,
            screen=screen,
        )
        return
    is_model = not Path(source).is_file()
    if (is_model and gpus is None and cluster is None) or batch is None:
        raise click.UsageError(
            "a profile or model is planned for some devices and a batch: add --gpus or --cluster, and --batch."
        )
    if emit is not None and not Path(emit).name.isidentifier():
        raise click.UsageError(f"--emit {emit} becomes a package: give its folder a name that Python can import.")
    if objective == "bottleneck" or assignment is not None:
        raise click.UsageError("--objective bottleneck and --assignment belong to a graph of --format.")
    wishes: dict[str, Any] = {name: options.pop(name) for name in WISHES}
    profile = _profile(source, micro_batch, screen, options)

    from autopipe.cli.cluster import cluster_of
    from autopipe.planner import Request
    from autopipe.planner import plan as make_plan
    from autopipe.reporting.plan_table import plan_report

    devices = cluster_of(
        profile,
        cluster=cluster,
        gpus=gpus,
        memory_bytes=memory,
        bytes_per_s=bandwidth,
        latency_ns=None if latency_us is None else round(latency_us * MICROSECOND_NS),
    )
    request = Request(
        batch_size=batch,
        micro_batch_size=micro_batch,
        schedule=schedule,
        stages=stages,
        time_limit_s=time_limit,
        **wishes,
    )
    plan = make_plan(profile, devices, request)
    if lp_file is not None:
        from autopipe.planner import write_programme

        write_programme(profile, devices, request, plan, lp_file)
        screen.say(f"Integer programme written to {lp_file}.")
    screen.show(plan_report(plan))
    if emit is not None:
        _emit(plan, Path(emit), screen)
    screen.deliver(plan, output)


def _emit(plan: Plan, folder: Path, screen: Screen) -> None:
    from autopipe.cli.export import write_files
    from autopipe.exporters.stage_code import stage_files

    if plan.graph is None:
        raise InputError(
            f"the plan for {plan.model} holds no graph, so its stages cannot be written: profile the model."
        )
    write_files(stage_files(plan, plan.graph), folder)
    count = len(plan.stages)
    screen.say(f"\n{count} stage{'s' if count > 1 else ''} written to {folder}: {folder.name}.split(model) makes them.")


def _profile(source: str, micro_batch: int | None, screen: Screen, options: dict[str, Any]) -> Profile:
    """Return the profile in the file ``source``, or of the model that it names."""
    if Path(source).is_file():
        return load(source, Profile)
    if ":" not in source:
        raise InputError(
            f"{source!r} is neither a file nor a model: give a profile that `autopipe profile` wrote, "
            "package.module:factory or path/to/file.py:factory."
        )
    optimizer, budget = options.pop("optimizer"), options.pop("budget")
    with screen.foreign_code():
        subject = prepare(source, **options)
    sizes = None if micro_batch is None else (micro_batch,)
    return measure(subject, screen, micro_batches=sizes, optimizer=optimizer, budget=budget)
