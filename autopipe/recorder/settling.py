"""A model is run until one graph stands for all its recordings: any batch size, train and eval."""

from dataclasses import dataclass, replace

from torch import fx, nn

from autopipe.errors import CaptureError
from autopipe.recorder import glue
from autopipe.recorder.example import Example, with_batch
from autopipe.recorder.functions import is_random
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.notes import NOTE, Note, memory, note_of
from autopipe.recorder.overlay import Conflict, Variant, overlay
from autopipe.recorder.run import Run, run

_ROUNDS = 24
_LARGE_SHARE = 1 / 8


@dataclass(frozen=True, kw_only=True)
class Settled:
    """One graph of a model, what it is free of, and how it came about.

    ``demoted`` gives the reason for each module that was made a leaf; ``leaves`` and ``compiling`` are what the
    model must be run with to be recorded so again.
    """

    graph: fx.Graph
    batch_is_free: bool
    mode_is_free: bool
    demoted: dict[str, str]
    leaves: Leaves
    compiling: bool


def settle(model: nn.Module, example: Example, leaves: Leaves) -> Settled:
    """Return the graph of ``model`` that holds at any batch size and in both modes, as far as there is one.

    Where recordings differ in a way that no graph can express, the module in which they do becomes a leaf;
    where that is the model itself, the batch size (or the mode) stays as recorded.

    Raises
    ------
    CaptureError
        If the model itself cannot be written down.
    """
    demoted: dict[str, str] = {}
    frees_batch, frees_mode = example.batch_size is not None, True
    for _ in range(_ROUNDS):
        base = _base_run(model, example, leaves)
        demoted |= {path: str(reason) for path, reason in base.demoted.items()}
        batch = _batch_variant(model, example, leaves, base) if frees_batch else None
        mode = _mode_variant(model, example, leaves, base) if frees_mode else None
        frees_batch, frees_mode = batch is not None, mode is not None
        runs = [variant for variant in (batch, mode) if variant is not None]
        late = frozenset(path for variant in runs for path in variant.demoted) - base.demoted.keys()
        if late:
            leaves = replace(leaves, forced=leaves.forced | late)
            continue
        conflict = _lay_over(model, example, base, batch, mode)
        if conflict is None:
            if example.batch_size is not None and not frees_batch:
                _fix_batch_size(base.graph, example.batch_size)
            return Settled(
                graph=base.graph,
                batch_is_free=frees_batch,
                mode_is_free=frees_mode,
                demoted=demoted,
                leaves=leaves,
                compiling=base.compiling,
            )
        if conflict.module:
            forced = _of_same_class(model, conflict.module)
            demoted |= dict.fromkeys(forced, f"its recordings differ: {conflict.what}")
            leaves = replace(leaves, forced=leaves.forced | forced)
        elif conflict.variant.batch_size is not None:
            frees_batch = False
        else:
            frees_mode = False
    raise CaptureError(
        f"{type(model).__name__} did not settle into one graph after {_ROUNDS} recordings: it runs differently each "
        "time. Pass the module that does so as leaf=, or make its forward depend on its inputs only."
    )


def _base_run(model: nn.Module, example: Example, leaves: Leaves) -> Run:
    """Return the recording of the example itself."""
    first = run(model, with_batch(example, example.batch_size or 0), leaves)
    if first.rebinds:
        # Libraries set attributes up in the first call: only what a second call still rebinds counts.
        first = run(model, with_batch(example, example.batch_size or 0), leaves)
    if first.refused is None and _share(model, first) <= _LARGE_SHARE:
        return first
    # Some libraries read no values when they believe to be compiled: worth it where much would be kept whole.
    second = run(model, with_batch(example, example.batch_size or 0), leaves, compiling=True)
    if second.refused is None and (first.refused is not None or _share(model, second) < _share(model, first)):
        return second
    if first.refused is None:
        return first
    raise CaptureError(
        f"{first.refused}. A pipeline cannot cut what it cannot write down. Change that line so "
        "that it keeps to tensor operations, or move it into a module of its own, which is then called whole."
    )


def _share(model: nn.Module, recorded: Run) -> float:
    """Return the largest share of the parameters that is in one module which had to become a leaf."""
    sizes = [_parameters(model.get_submodule(path)) for path in recorded.demoted]
    return max(sizes, default=0) / max(_parameters(model), 1)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _batch_variant(model: nn.Module, example: Example, leaves: Leaves, base: Run) -> Run | None:
    """Return the recording at one more sample; None if the model does not run on it."""
    assert example.batch_size is not None
    return _try_run(model, with_batch(example, example.batch_size + 1), leaves, base)


def _mode_variant(model: nn.Module, example: Example, leaves: Leaves, base: Run) -> Run | None:
    """Return the recording in the other of the modes train and eval; None if the model does not run in it."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.train(not model.training)
        return _try_run(model, with_batch(example, example.batch_size or 0), leaves, base)
    finally:
        for module, training in flags:
            module.training = training


def _try_run(model: nn.Module, example: Example, leaves: Leaves, base: Run) -> Run | None:
    try:
        variant = run(model, example, leaves, compiling=base.compiling)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError):
        # The model's own refusal of such an input: the recording then holds for the example's only.
        return None
    return variant if variant.refused is None else None


def _lay_over(model: nn.Module, example: Example, base: Run, batch: Run | None, mode: Run | None) -> Conflict | None:
    """Lay the variants over ``base``; return what stood against it."""
    identities = (memory(tensor) for tensor in (*model.parameters(), *model.buffers()))
    variants = [] if mode is None else [Variant(graph=mode.graph)]
    if batch is not None:
        assert example.batch_size is not None
        variants.append(Variant(graph=batch.graph, batch_size=example.batch_size + 1))
    try:
        overlay(
            base.graph,
            variants,
            batch_size=example.batch_size,
            model_memories=frozenset(identity for identity in identities if identity is not None),
            trains=lambda path: model.get_submodule(path).training,
        )
    except Conflict as conflict:
        return conflict
    return None


def _of_same_class(model: nn.Module, path: str) -> frozenset[str]:
    """Return the paths of all modules of one class: what one of them does, the others do too."""
    kind = type(model.get_submodule(path))
    return frozenset(other for other, module in model.named_modules() if other and type(module) is kind)


def _fix_batch_size(graph: fx.Graph, batch_size: int) -> None:
    """Let ``graph`` check that its first tensor has the recorded batch size."""
    nodes = list(graph.nodes)
    first = next(node for node in nodes if (note_of(node).shape or ())[:1] == (batch_size,))
    behind = next(node for node in nodes if node.op != "placeholder")
    with graph.inserting_before(behind if first.op == "placeholder" else first.next):
        node = graph.call_function(glue.expect_size, (first, 0, batch_size, f"argument {first.name}"))
    node.meta[NOTE] = Note(owner="", is_value=False)


def remove_unread(graph: fx.Graph) -> None:
    """Remove what is computed and never read, unless it changes memory, draws random numbers or is a module."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op not in ("call_function", "call_method", "get_attr"):
            continue
        if not node.is_impure() and not note_of(node).writes and not is_random(node.target):
            graph.erase_node(node)
