"""Megatron-Core takes a plan as a layout string: which layers stand on which stage."""

from itertools import groupby

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.exporters.blocks import Blocks, find_blocks
from autopipe.exporters.export import Export, File
from autopipe.exporters.expressible import expressible

SCHEDULES = ("1f1b", "interleaved")


def megatron(plan: Plan, graph: Graph, profile: Profile | None = None) -> Export:
    """Return the arguments that make Megatron-Core run ``plan``.

    Raises
    ------
    InputError
        If the model is no single row of blocks, or the plan has to change and there is no profile.

    Notes
    -----
    The grammar of ``--pipeline-model-parallel-layout``: stages in the order of the forward, ``|`` between them; in
    each, ``E`` the embedding, ``t`` a decoder layer, ``L`` the loss; ``x*n`` and ``(...)*n`` repeat. With v virtual
    stages per rank, stage s is on rank s mod p, as here.

    References
    ----------
    Megatron-Core user guide, Custom Pipeline Model Parallel Layout.
    """
    blocks = find_blocks(graph)
    forbidden = {*blocks.torn(), *_inside_ends(blocks)}
    found, notes = expressible(plan, profile, runtime="Megatron-Core", forbidden=forbidden, schedules=SCHEDULES)
    stages = [_letters(blocks, stage.begin, stage.end, len(graph.layers)) for stage in found.stages]
    lines = [
        f"--pipeline-model-parallel-size {found.pipeline_size}",
        f'--pipeline-model-parallel-layout "{layout(stages)}"',
        f"--micro-batch-size {found.micro_batch_size}",
        f"--global-batch-size {found.micro_batch_size * found.micro_batches * found.data_parallel_size}",
        *_recompute(found, blocks),
    ]
    uneven = _uneven(stages)
    if uneven:
        notes += (f"Older versions without a layout string take {uneven} instead.",)
    if found.micro_batch_size * found.micro_batches != found.batch_size:
        notes += ("The last micro-batch of the plan is a short one; Megatron-Core fills it.",)
    if graph.tied():
        notes += ("Tied weights: leave --untie-embeddings-and-output-weights out.",)
    notes += (f"Blocks are {blocks.name(blocks.numbers[0])} to {blocks.name(blocks.numbers[-1])}, one t each.",)
    return Export(
        files=(File(name="megatron_arguments.txt", text="\n".join(lines) + "\n"),),
        plan=found,
        step_ns=found.step_ns,
        notes=notes,
    )


def layout(stages: list[str]) -> str:
    """Return the layout string of ``stages``, each a string of the letters E, t and L; equal neighbours as one."""
    short = [_repeated(stage) for stage in stages]
    parts = []
    position = 0
    for stage, group in groupby(short):
        count = len(list(group))
        position += count
        last = position == len(short)
        whole = count - 1 if last else count
        if whole > 1:
            parts.append(f"({stage}|)*{whole}")
        elif whole == 1:
            parts.append(f"{stage}|")
        if last:
            parts.append(stage)
    return "".join(parts)


def _repeated(stage: str) -> str:
    runs = ((letter, len(list(group))) for letter, group in groupby(stage))
    return "".join(letter if count == 1 else f"{letter}*{count}" for letter, count in runs)


def _letters(blocks: Blocks, begin: int, end: int, layers: int) -> str:
    head = "E" if begin == 0 else ""
    tail = "L" if end == layers else ""
    return head + "t" * len(blocks.in_stage(begin, end)) + tail


def _inside_ends(blocks: Blocks) -> tuple[int, ...]:
    """Return the positions inside what stands before the first block, and inside what stands behind the last."""
    within = [index for index, own in enumerate(blocks.of_layer) if own]
    first, last = within[0], within[-1]
    return (*range(1, first), *range(last + 2, len(blocks.of_layer)))


def _uneven(stages: list[str]) -> str:
    """Return the flags for a plan whose middle stages are alike, empty where they say less than the layout."""
    counts = [stage.count("t") for stage in stages]
    if len(counts) < 3 or len(set(counts[1:-1])) != 1 or 0 in counts or len(set(counts)) == 1:
        return ""
    return f"--decoder-first-pipeline-num-layers {counts[0]} --decoder-last-pipeline-num-layers {counts[-1]}"


def _recompute(plan: Plan, blocks: Blocks) -> tuple[str, ...]:
    """Return the flags for the most blocks that any stage recomputes: Megatron-Core has one number for all."""
    most = max(
        len({number for name in stage.recompute for number in blocks.numbers if _is_in(name, blocks.name(number))})
        for stage in plan.stages
    )
    if not most:
        return ()
    return ("--recompute-granularity full", "--recompute-method block", f"--recompute-num-layers {most}")


def _is_in(name: str, block: str) -> bool:
    return name == block or name.startswith(f"{block}.")
