"""torch.distributed.pipelining takes a plan as a script: the plan's stages, its schedule, one process per rank."""

from collections.abc import Sequence
from itertools import pairwise
from pprint import pformat

from jinja2 import Environment, PackageLoader, Template

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.errors import InputError
from autopipe.exporters.export import Export, File
from autopipe.schedules.csv import to_csv
from autopipe.schedules.planned import planned_schedule

SCRIPT = "train_with_torch.py"
_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "bfs": "ScheduleLoopedBFS",
    "zb-v": "ScheduleZBVZeroBubble",
}
_SINGLE = ("gpipe", "1f1b")


def torch_script(plan: Plan, graph: Graph, *, plan_file: str, model: str | None = None) -> Export:
    """Return a script that runs ``plan`` with torch.distributed.pipelining.

    Parameters
    ----------
    plan_file : str
        Where the script finds the plan.
    model : str, optional
        ``path/to/file.py:factory`` or ``package.module:factory``, a factory of (model, example, loss_fn); without
        it the script says where to write the model.

    Raises
    ------
    InputError
        If an argument does not carry the batch, or the mini-batch is not whole micro-batches.
    """
    _check(plan, graph)
    takes, reads, makes = _crossings(graph, (0, *(stage.end for stage in plan.stages)))
    numbers = {value.name for value in graph.values if value.shape is None}
    named = _CLASSES.get(plan.schedule)
    text = _template().render(
        model=graph.model,
        plan=plan_file,
        name=SCRIPT,
        ranks=plan.pipeline_size,
        schedule=named or "_PipelineScheduleRuntime",
        csv=named is None,
        single=plan.schedule in _SINGLE,
        stage_ranks=plan.stage_ranks,
        micro_batches=plan.micro_batches,
        arguments=graph.arguments,
        takes=takes,
        reads=reads,
        makes=makes,
        gives=[*takes[1:], ()],
        numbers=sorted(numbers.intersection(name for row in takes for name in row)),
        tied=_tied(plan, graph),
        factory=model,
    )
    files = (File(name="schedule.csv", text=to_csv(planned_schedule(plan))),) if named is None else ()
    notes = [
        "torch.distributed.pipelining hands every value from stage to stage, also past stages that do not read it.",
        "It divides gradients by the number of micro-batches, so all must have the same number of samples.",
    ]
    if named is None:
        notes.append(
            f"torch has no schedule {plan.schedule}: it is read from schedule.csv by a class that torch keeps private."
        )
    if any(stage.recompute for stage in plan.stages):
        notes.append("The plan's recompute is left out: the stages keep all activations.")
    if plan.data_parallel_size > 1:
        notes.append("One replica only: wrap the stages in DistributedDataParallel yourself.")
    return Export(
        files=(File(name=SCRIPT, text=text), *files),
        plan=plan,
        step_ns=plan.step_ns,
        notes=tuple(notes),
    )


def _check(plan: Plan, graph: Graph) -> None:
    """Raise where torch.distributed.pipelining cannot run the plan."""
    if graph.whole_inputs:
        raise InputError(
            f"argument {graph.whole_inputs[0]} has no batch dimension, and torch.distributed.pipelining cuts every "
            "argument along its first: make it a buffer of the model."
        )
    if graph.batch_dims or graph.output_dim:
        raise InputError(
            f"{min(graph.batch_dims, default='the output')} carries the batch in another dimension than its first, "
            "along which the exported script cuts: transpose it in the model."
        )
    if plan.micro_batch_size * plan.micro_batches != plan.batch_size:
        raise InputError(
            f"{plan.batch_size} samples are not {plan.micro_batches} micro-batches of {plan.micro_batch_size}, and "
            f"torch needs equal ones: plan with --micro-batch and --batch that divide."
        )


def _crossings(
    graph: Graph, bounds: Sequence[int]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return, by stage, what enters it from the stage before, what it reads, and what it makes for later ones."""
    takes, reads, makes = [], [], []
    for begin, end in pairwise(bounds):
        entering = [value for value in graph.values if value.producer < begin <= value.consumers[-1]]
        takes.append(tuple(value.name for value in entering))
        reads.append(tuple(v.name for v in entering if any(begin <= consumer < end for consumer in v.consumers)))
        makes.append(tuple(v.name for v in graph.values if begin <= v.producer < end and v.consumers[-1] >= end))
    return takes, reads, makes


def _tied(plan: Plan, graph: Graph) -> dict[str, list[int]]:
    """Return the tied parameters that are on several ranks, each with its ranks."""
    found = {}
    for name, layers in graph.tied().items():
        ranks = {stage.rank for stage in plan.stages for layer in layers if stage.begin <= layer < stage.end}
        if len(ranks) > 1:
            found[name] = sorted(ranks)
    return found


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("autopipe", "exporters"), keep_trailing_newline=True, autoescape=False
    )
    environment.filters["python"] = pformat
    return environment.get_template("torch_script.py.jinja")
