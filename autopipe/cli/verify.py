"""``autopipe verify`` compares the gradients of a pipeline with those of the plain model."""

import copy
import math
from typing import TYPE_CHECKING, Any

import click

from autopipe.cli.screen import Screen
from autopipe.cli.subject import Subject, prepare, subject_options
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.errors import InputError, StepError

if TYPE_CHECKING:
    from torch import Tensor

    from autopipe.cli.equality import Verdict

SHOWN = 12


@click.command("verify", short_help="Compare a pipeline's gradients with the plain model's.")
@click.argument("model")
@click.argument("plan_file", metavar="PLAN")
@subject_options
@click.option("--quiet", "-q", is_flag=True, help="Errors only.")
def command(model: str, plan_file: str, quiet: bool, optimizer: str, budget: float, **options: Any) -> None:
    """Train one step of MODEL as PLAN says, in threads of this process, and compare it with the plain model.

    Loss and every gradient must be equal bit for bit, except in sums whose order a pipeline must change. Exit code 1 if
    one is not.

    \b
    autopipe verify model.py:build plan.json --input 8x1024:int64 \\
        --target 8x1024:int64 --loss cross_entropy
    """
    screen = Screen(json=False, quiet=quiet)
    plan = load(plan_file, Plan)
    if plan.graph is None:
        raise InputError(f"{plan_file} holds no graph, so it cannot be built: plan from a profile of the model.")
    with screen.foreign_code():
        from autopipe.cli.loss import loss_to_train

        subject = prepare(model, **options)
        subject = subject._replace(loss_fn=loss_to_train(subject))
        verdict, losses, sums = _compare(subject, plan)
    equal = losses[0] == losses[1] or (plan.data_parallel_size > 1 and math.isclose(*losses, rel_tol=1e-5))
    screen.show(f"Loss: {'equal' if equal else 'DIFFERENT'}, {losses[1]:.9g} in the pipeline, {losses[0]:.9g} plain.")
    total = sum(map(len, verdict))
    screen.show(f"Gradients: {len(verdict.equal)} of {total} equal bit for bit.")
    if verdict.close:
        screen.show(f"Within 1e-5, in sums of another order: {_named(verdict.close)}.")
    for name, stages in sums:
        screen.show(f"  {name} is added up over stages {', '.join(map(str, stages))}.")
    if verdict.different or not equal:
        raise StepError(
            f"the pipeline and the model compute different numbers: {_named(verdict.different) or 'the loss'}. "
            "Report it with the model; until then train without a pipeline."
        )


def _compare(subject: Subject, plan: Plan) -> "tuple[Verdict, tuple[float, float], list[tuple[str, tuple[int, ...]]]]":
    """Return the verdict on gradients, the losses (plain, pipeline) and the sums that change their order."""
    import torch

    import autopipe
    from autopipe import Arguments
    from autopipe.cli.equality import compare_gradients, reordered_sums

    assert plan.graph is not None
    torch.set_num_threads(1)
    twin = copy.deepcopy(subject.model)
    ranks = plan.pipeline_size * plan.data_parallel_size
    pipe = autopipe.pipeline(subject.model, plan=plan, loss_fn=subject.loss_fn, ranks=ranks, seed=0)
    piped = float(pipe.step(Arguments(*subject.args, **subject.kwargs), target=subject.target))
    if any(layer.draws for layer in plan.graph.layers):
        # The plain model cannot be seeded node by node; its recorded form in one stage can.
        plain = _one_stage(twin, subject, plan)
    else:
        plain = _plain(twin, subject, plan)
    sums = reordered_sums(plan, plan.graph)
    exempt = frozenset(name for one in sums for name in one.gradients)
    expected = _gradients(twin)
    if plan.data_parallel_size > 1:
        exempt = frozenset(expected)  # each is a sum over replicas, of their own sums
    verdict = compare_gradients(expected, _gradients(subject.model), exempt)
    return verdict, (plain, piped), [(one.name, one.stages) for one in sums]


def _plain(model: Any, subject: Subject, plan: Plan) -> float:
    """Return the loss of the plain model over the plan's micro-batches; its gradients stay on its parameters."""
    from autopipe.stages.loss import resolve_loss

    total: Tensor | None = None
    sizes, parts, targets = _cut(subject, plan)
    for (args, kwargs), target, size in zip(parts, targets, sizes, strict=True):
        loss = resolve_loss(subject.loss_fn, model(*args, **kwargs), target) * (size / sum(sizes))
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    return float(total if total is not None else 0.0)


def _cut(subject: Subject, plan: Plan) -> tuple[tuple[int, ...], list[Any], list[Any]]:
    """Return the sizes, arguments and targets of the micro-batches of all replicas, the first replica's first."""
    from autopipe.executor.microbatch import Inputs, micro_batch_sizes
    from autopipe.executor.sampler import replica_sizes

    assert plan.graph is not None
    inputs = Inputs.of(plan.graph)
    (samples,) = inputs.sizes(subject.args, subject.kwargs, 1)
    sizes = tuple(
        size
        for part in replica_sizes(samples, plan.data_parallel_size)
        for size in micro_batch_sizes(part, plan.micro_batches)
    )
    parts = inputs.cut(subject.args, subject.kwargs, sizes)
    return sizes, list(parts), list(inputs.cut_target(subject.target, sizes))


def _one_stage(model: Any, subject: Subject, plan: Plan) -> float:
    from autopipe import Arguments, MicroBatches
    from autopipe.executor.layout import Layout
    from autopipe.executor.pipeline import Pipeline
    from autopipe.recorder import rebuild

    assert plan.graph is not None
    sizes, parts, targets = _cut(subject, plan)
    positions = range(len(subject.args))
    arguments = Arguments(
        *(MicroBatches(tuple(args[position] for args, _ in parts)) for position in positions),
        **{name: MicroBatches(tuple(kwargs[name] for _, kwargs in parts)) for name in subject.kwargs},
    )
    target = None if subject.target is None else MicroBatches(tuple(targets))
    layout = Layout(bounds=(0, len(plan.graph.layers)), stage_ranks=(0,), schedule="1f1b", micro_batches=len(sizes))
    pipe = Pipeline(rebuild(model, plan.graph), plan.graph, layout, loss_fn=subject.loss_fn, ranks=1, seed=0)
    return float(pipe.step(arguments, target=target))


def _gradients(model: Any) -> "dict[str, Tensor]":
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
