"""``autopipe bench`` runs a plan on as many processes of this machine as it has ranks: predicted beside measured."""

import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from autopipe.cli.local_ranks import run_ranks
from autopipe.cli.screen import Screen, screen_options
from autopipe.cli.subject import subject_options
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Timeline
from autopipe.errors import InputError
from autopipe.units import format_share

LOADED_SHARE = 0.10


@click.command("bench", short_help="Run a plan on this machine, predicted beside measured.")
@click.argument("model")
@click.argument("plan_file", metavar="PLAN")
@subject_options
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps that count.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the measured timeline here.")
@screen_options
def command(
    model: str,
    plan_file: str,
    steps: int,
    output: str | None,
    as_json: bool,
    quiet: bool,
    budget: float,
    **options: Any,
) -> None:
    """Train MODEL as PLAN says on this machine's processors, with made-up data, and compare with the prediction.

    The prediction holds for the device that was profiled: measured times agree where that is this machine, with a
    processor of its own for every rank.

    \b
    autopipe bench model.py:build plan.json --input 8x1024:int64
    """
    from autopipe.cli.bench.rank import TIMELINE, Job, Usages
    from autopipe.cli.observed import foreign_share
    from autopipe.reporting.comparison import compare, comparison_table
    from autopipe.reporting.timeline_text import timeline_text

    screen = Screen(json=as_json, quiet=quiet)
    plan = load(plan_file, Plan)
    if plan.data_parallel_size > 1:
        raise InputError(
            f"{plan_file} has {plan.data_parallel_size} replicas, and a bench runs one: plan with --replicas 1."
        )
    with tempfile.TemporaryDirectory(prefix="autopipe-bench-") as folder, screen.progress("bench") as progress:
        job = Job(
            folder=folder,
            plan=str(Path(plan_file).resolve()),
            model=model,
            steps=steps,
            **{name: options[name] for name in ("inputs", "target", "loss", "dtype", "optimizer")},
        )

        def heard(line: str) -> None:
            step = msgspec.json.decode(line)["step"]
            progress(f"step {step}", min(1.0, step / steps))

        run_ranks("autopipe.cli.bench.rank", msgspec.json.encode(job).decode(), ranks=plan.pipeline_size, heard=heard)
        timeline = load(Path(folder) / TIMELINE, Timeline)
        reports = [
            msgspec.json.decode((Path(folder) / f"rank{rank}.json").read_bytes(), type=Usages)
            for rank in range(plan.pipeline_size)
        ]
    timeline = msgspec.structs.replace(
        timeline,
        ranks=tuple(
            msgspec.structs.replace(rank, peak_bytes=report.peak_bytes)
            for rank, report in zip(timeline.ranks, reports, strict=True)
        ),
    )
    screen.show(timeline_text(timeline, width=screen.width))
    screen.show()
    screen.show(comparison_table(compare(plan, timeline)))
    share = foreign_share([report.usage for report in reports])
    if share is not None and share > LOADED_SHARE:
        screen.show(f"\nOther programs used {format_share(share)} of the machine: the measured times are too long.")
    screen.deliver(timeline, output)
