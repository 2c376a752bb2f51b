"""``autopipe demo`` takes a small GPT from profile to proof on two local processes."""

import os
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from autopipe.cli.local_ranks import run_ranks
from autopipe.cli.screen import Screen
from autopipe.documents.files import load, save
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.errors import StepError
from autopipe.units import format_share, format_time

RANKS = 2
BATCH = 16
MICRO_BATCHES = (1, 2, 4)
PROFILE_BUDGET_S = 20.0
LOADED_SHARE = 0.10


@click.command("demo", short_help="Train a small GPT on two local processes, from profile to proof.")
@click.option("--steps", type=click.IntRange(min=2), default=40, show_default=True, help="Training steps.")
@click.option("--keep", type=click.Path(file_okay=False), help="Keep profile, plan and timeline in this folder.")
@click.option("--quiet", "-q", is_flag=True, help="No tables and no progress, errors only.")
def command(steps: int, keep: str | None, quiet: bool) -> None:
    """Train a small GPT on two local processes, from profile to proof.

    A byte-level GPT of four million parameters learns the source text of the Python standard library. It is
    profiled, planned for two ranks, trained by two processes over gloo, laid beside its prediction, and
    compared bit for bit with the plain model.
    """
    screen = Screen(json=False, quiet=quiet)
    with tempfile.TemporaryDirectory(prefix="autopipe-demo-") as temporary:
        folder = Path(temporary) if keep is None else Path(keep)
        folder.mkdir(parents=True, exist_ok=True)
        plan = _plan(folder, screen)
        losses = _train(folder, steps, screen)
        reports = _compare(folder, plan, losses, screen)
        equal = _prove(plan, losses, reports, screen)
    if keep is not None:
        screen.say(f"\nprofile.json, plan.json and timeline.json are in {keep}.")
    if not equal:
        raise StepError("the pipeline's numbers differ from the plain model's: see above. This is a bug; report it.")


def _plan(folder: Path, screen: Screen) -> Plan:
    """Profile and plan the demo's model; show profile, plan and predicted timeline."""
    from autopipe.api import partition
    from autopipe.planner import simulate_plan
    from autopipe.reporting.plan_table import plan_report
    from autopipe.reporting.profile_table import profile_report
    from autopipe.reporting.timeline_text import timeline_text

    screen.show(f"1. Profile: a byte-level GPT, {', '.join(map(str, MICRO_BATCHES))} samples a micro-batch\n")
    profile = _profile(folder, screen)
    screen.show(profile_report(profile))
    link, rate = format_time(profile.link_latency_ns), (profile.link_bytes_per_s or 0) / 1e9
    screen.show(f"\nLink between two processes: {link} and {rate:.2f} GB/s")
    screen.show(f"\n2. Plan: {RANKS} ranks, {BATCH} samples a step\n")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // RANKS
    plan = partition(profile, gpus=RANKS, batch_size=BATCH, memory_bytes=memory, stages=RANKS, schedule="1f1b")
    save(plan, folder / "plan.json")
    screen.show(plan_report(plan))
    screen.show("\nPredicted timeline of one step\n")
    screen.show(timeline_text(simulate_plan(plan), width=screen.width))
    return plan


def _profile(folder: Path, screen: Screen) -> Profile:
    """Have both ranks measure at the same time, one thread each, and return what the first wrote."""
    from autopipe.cli.demo.measure import PROFILE, Doing, Task

    task = Task(folder=str(folder.resolve()), micro_batches=MICRO_BATCHES, budget_s=PROFILE_BUDGET_S)
    with screen.progress("profile") as progress:

        def heard(line: str) -> None:
            report = msgspec.json.decode(line, type=Doing)
            progress(report.doing, report.share)

        run_ranks("autopipe.cli.demo.measure", msgspec.json.encode(task).decode(), ranks=RANKS, heard=heard)
    return load(folder / PROFILE, Profile)


def _train(folder: Path, steps: int, screen: Screen) -> tuple[float, ...]:
    """Run the ranks under torchrun and return the losses that they report."""
    from autopipe.cli.demo.rank import Job, Report

    screen.show(f"\n3. Train: {steps} steps on {RANKS} processes over gloo\n")
    job = msgspec.json.encode(Job(folder=str(folder.resolve()), steps=steps, batch=BATCH)).decode()
    losses: list[float] = []
    with screen.progress("train") as progress:

        def heard(line: str) -> None:
            report = msgspec.json.decode(line, type=Report)
            losses.append(report.loss)
            progress(f"step {report.step + 1}, loss {report.loss:.3f}", (report.step + 1) / steps)

        run_ranks("autopipe.cli.demo.rank", job, ranks=RANKS, heard=heard)
    return tuple(losses)


def _compare(folder: Path, plan: Plan, losses: tuple[float, ...], screen: Screen) -> list[dict[str, Any]]:
    """Show predicted beside measured; return what the ranks wrote."""
    import torch

    from autopipe.cli.demo.rank import TIMELINE
    from autopipe.cli.observed import Usage, foreign_share
    from autopipe.planner import simulate_plan
    from autopipe.reporting.comparison import compare, comparison_table
    from autopipe.reporting.timeline_comparison import compare_timelines
    from autopipe.reporting.timeline_text import timeline_text

    reports = [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]
    timeline = load(folder / TIMELINE, Timeline)
    ranks = tuple(
        msgspec.structs.replace(rank, peak_bytes=report["peak_bytes"])
        for rank, report in zip(timeline.ranks, reports, strict=True)
    )
    timeline = msgspec.structs.replace(timeline, ranks=ranks)
    save(timeline, folder / TIMELINE)
    screen.show(f"Loss {losses[0]:.4f} in the first step, {losses[-1]:.4f} in step {len(losses)}.")
    screen.show("\nMeasured timeline of the median step\n")
    screen.show(timeline_text(timeline, width=screen.width))
    screen.show()
    screen.show(comparison_table(compare(plan, timeline)))
    screen.show()
    screen.show(comparison_table(compare_timelines(simulate_plan(plan), timeline)))
    share = foreign_share([Usage(*report["usage"]) for report in reports])
    if share is not None and share > LOADED_SHARE:
        screen.show(
            f"\nOther programs used {format_share(share)} of the machine while the ranks trained: the measured "
            "times are too long by about as much. Try again on a quiet machine."
        )
    return reports


def _prove(plan: Plan, losses: tuple[float, ...], reports: list[dict[str, Any]], screen: Screen) -> bool:
    """Repeat the steps with the plain model and show whether losses and gradients are equal."""
    from autopipe.cli.demo.proof import train_plain
    from autopipe.cli.equality import compare_gradients, reordered_sums

    steps = len(losses)
    screen.show("\n4. Proof: the plain model in one thread, the same steps\n")
    with screen.progress("plain model") as progress:
        plain = train_plain(steps, batch=BATCH, micro_batch=plan.micro_batch_size, progress=progress)
    sums = () if plan.graph is None else reordered_sums(plan, plan.graph)
    exempt = frozenset(name for one in sums for name in one.gradients)
    same_losses = sum(one == other for one, other in zip(plain.losses, losses, strict=True))
    good = same_losses == steps
    screen.show(f"Losses of all steps: {'equal' if good else 'DIFFERENT'}, {same_losses} of {steps} bit for bit.")
    for step, expected in plain.gradients.items():
        piped = {name: gradient for report in reports for name, gradient in report["gradients"][step].items()}
        verdict = compare_gradients(expected, piped, exempt)
        word = "DIFFERENT" if verdict.different else "equal"
        screen.show(
            f"Gradients of step {step + 1}: {word}, {len(verdict.equal)} of {len(expected)} bit for bit"
            + (f", within 1e-5: {', '.join(verdict.close)}" if verdict.close else "")
            + (f", different: {', '.join(verdict.different)}" if verdict.different else "")
            + "."
        )
        good = good and not verdict.different
    named = (
        f"of {one.name}, read on stages {', '.join(map(str, one.stages))} (passes into {len(one.gradients)} gradients)"
        for one in sums
    )
    screen.show(f"Exempt sums, which the pipeline may add in another order: {'; '.join(named) or 'none'}.")
    return good
