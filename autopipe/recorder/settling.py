"""A model is run until one graph stands for all its recordings: any batch size, train and eval."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import fx, nn

from autopipe.errors import CaptureError
from autopipe.recorder import glue
from autopipe.recorder.example import Example, with_batch, with_length
from autopipe.recorder.exhaustion import is_out_of_memory
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.ledger import TensorNames, tensor_names
from autopipe.recorder.notes import NOTE, Note, memory, note_of
from autopipe.recorder.overlay import Conflict, Variant, overlay
from autopipe.recorder.run import Run, run

_ROUNDS = 32
_LARGE_SHARE = 1 / 8
_BATCH, _LENGTH = "batch", "length"

# How a model refuses an input that it does not take: the recording then holds for the example's kind only.
MODEL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a model is recorded on, and what is asked of the graph.

    ``demoted`` gives the reason for each module that had to become a leaf; ``specialises`` lets the model itself read
    values of tensors, and has the graph check them; ``names`` are the names of the
    tensors of the model as the user gave it, and ``written_back`` those of the buffers that it rebinds;
    ``fixes_length`` asks the graph to check the sequence length,
    because the recording depends on it; ``methods`` are those of the model that are called whole.
    """

    model: nn.Module
    example: Example
    leaves: Leaves
    names: TensorNames
    frees_batch: bool = True
    frees_mode: bool = True
    frees_length: bool = True
    fixes_length: bool = False
    compiling: bool = False
    specialises: bool = False
    written_back: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    demoted: dict[str, str] = field(default_factory=dict)

    def run(self, example: Example | None = None, *, compiling: bool | None = None, keep: bool = False) -> Run:
        """Record one run, on other data than the example where that is given."""
        data = example or self.example
        return run(
            self.model,
            with_batch(data, data.batch_size or 0),
            self.leaves,
            names=self.names,
            compiling=self.compiling if compiling is None else compiling,
            specialises=self.specialises,
            written_back=self.written_back,
            methods=self.methods,
            keep=keep,
        )

    def with_leaf(self, path: str, reason: str) -> "Terms":
        """Return the terms with the module at ``path`` as a leaf, and all others of its class: they do as it does."""
        kind = type(self.model.get_submodule(path))
        alike = [other for other, module in self.model.named_modules() if other and type(module) is kind]
        return self.with_leaves(dict.fromkeys(alike, reason))

    def with_method(self, name: str, reason: str) -> "Terms":
        """Return the terms with one more method of the model called whole."""
        return replace(self, methods=self.methods | {name}, demoted={f"{name}()": reason} | self.demoted)

    def with_leaves(self, reasons: dict[str, str]) -> "Terms":
        """Return the terms with more modules as leaves, by path."""
        leaves = replace(self.leaves, forced=self.leaves.forced | reasons.keys())
        return replace(self, leaves=leaves, demoted=reasons | self.demoted)


def terms_of(model: nn.Module, example: Example, leaves: Leaves, *, specialises: bool = False) -> Terms:
    """Return the terms on which to record a model that has not run yet."""
    return Terms(
        model=model,
        example=example,
        leaves=leaves,
        names=tensor_names(model),
        frees_batch=example.batch_size is not None,
        specialises=specialises,
    )


def settle(terms: Terms) -> tuple[fx.Graph, Terms]:
    """Return the graph that holds at any batch size and in both modes, as far as there is one, and on what terms.

    Where recordings differ in a way that no graph can express, the module in which they do becomes a leaf;
    where that is the model itself, or most of it, the batch size (or the mode) stays as recorded.

    Raises
    ------
    CaptureError
        If the model itself cannot be written down.
    """
    for _ in range(_ROUNDS):
        base, terms = _base_run(terms)
        batch = _batch_variant(terms) if terms.frees_batch else None
        mode = _mode_variant(terms) if terms.frees_mode else None
        length = _length_variant(terms, base) if terms.frees_length else None
        terms = replace(
            terms, frees_batch=batch is not None, frees_mode=mode is not None, frees_length=length is not None
        )
        runs = [recorded for recorded in (base, batch, mode) if recorded is not None]
        if any(recorded.demoted.keys() != base.demoted.keys() for recorded in runs):
            for recorded in runs:
                terms = terms.with_leaves({path: str(reason) for path, reason in recorded.demoted.items()})
            continue
        conflict = _lay_over(terms, base, batch=batch, mode=mode, length=length)
        if conflict is None:
            _fix_sizes(base.graph, terms)
            if not terms.frees_mode:
                _fix_mode(base.graph, training=terms.model.training)
            return base.graph, terms
        if conflict.variant.symbol == _LENGTH:
            terms = replace(terms, frees_length=False, fixes_length=True)
        elif conflict.module and not (conflict.variant.symbol == _BATCH and _is_most(terms.model, conflict.module)):
            change = "in the other mode" if conflict.variant.symbol is None else "at another batch size"
            terms = terms.with_leaf(conflict.module, f"it runs differently {change}: {conflict.what}")
        elif conflict.variant.symbol == _BATCH:
            terms = replace(terms, frees_batch=False)
        else:
            terms = replace(terms, frees_mode=False)
    raise CaptureError(
        f"{type(terms.model).__name__} did not settle into one graph after {_ROUNDS} recordings: it runs differently "
        "each time. Pass the module that does so as leaf=, or make its forward depend on its inputs only."
    )


def _base_run(terms: Terms) -> tuple[Run, Terms]:
    """Return the recording of the example itself."""
    first = _run_settled(terms, terms.example)
    if not first.written_back <= terms.written_back:
        terms = replace(terms, written_back=terms.written_back | first.written_back)
        first = _run_settled(terms, terms.example)
    chosen, compiling = first, terms.compiling
    if first.refused is not None or _share(terms.model, first) > _LARGE_SHARE:
        # Some libraries read no values when they believe to be compiled: worth it where much would stay whole.
        second = _try_run(replace(terms, compiling=True), terms.example)
        if second is not None and (
            first.refused is not None or _share(terms.model, second) < _share(terms.model, first)
        ):
            chosen, compiling = second, True
    method = chosen.refusing_method
    if chosen.refused is not None and method is not None and method not in terms.methods:
        return _base_run(terms.with_method(method, str(chosen.refused)))
    if chosen.refused is not None:
        raise CaptureError(
            f"{chosen.refused}. A pipeline cannot cut what it cannot write down. Change that line so that it keeps to "
            "tensor operations, or move it into a module of its own, which is then called whole; where it reads a "
            "value that is the same in every run, record with specialise=True: the graph then checks that it is."
        )
    reasons = {path: str(reason) for path, reason in chosen.demoted.items()}
    return chosen, replace(terms, compiling=compiling, demoted=reasons | terms.demoted)


def _run_settled(terms: Terms, example: Example) -> Run:
    first = terms.run(example)
    # Libraries set attributes up in the first call: only what a second call still rebinds counts.
    return terms.run(example) if first.rebinds else first


def _share(model: nn.Module, recorded: Run) -> float:
    """Return the largest share of the parameters that is in one module which had to become a leaf."""
    sizes = [_parameters(model.get_submodule(path)) for path in recorded.demoted]
    return max(sizes, default=0) / max(_parameters(model), 1)


def _is_most(model: nn.Module, path: str) -> bool:
    """Return whether a module has so much of the model that no pipeline is left if it is called whole."""
    return _parameters(model.get_submodule(path)) > _parameters(model) / 2


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _batch_variant(terms: Terms) -> Run | None:
    """Return the recording at one more sample; None if the model does not run on it."""
    assert terms.example.batch_size is not None
    return _try_run(terms, with_batch(terms.example, terms.example.batch_size + 1))


def _mode_variant(terms: Terms) -> Run | None:
    """Return the recording in the other of the modes train and eval; None if the model does not run in it."""
    with mode_of(terms.model, training=not terms.model.training):
        return _try_run(terms, terms.example)


@contextmanager
def mode_of(*modules: nn.Module, training: bool) -> Iterator[None]:
    """Put modules into training or evaluation mode, and every one of their modules back at the end."""
    flags = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.train(training)
        yield
    finally:
        for part, before in flags:
            part.training = before


def _try_run(terms: Terms, example: Example) -> Run | None:
    try:
        variant = _run_settled(terms, example)
    except MODEL_ERRORS as error:
        if is_out_of_memory(error):
            raise
        return None
    return variant if variant.refused is None else None


def _length_variant(terms: Terms, base: Run) -> Run | None:
    """Return the recording at sequences one shorter; None if the model does not run on them, or otherwise."""
    length = terms.example.length
    if length is None or length < 3:
        return None
    variant = _try_run(terms, with_length(terms.example, length - 1))
    return variant if variant is not None and variant.demoted.keys() == base.demoted.keys() else None


def _lay_over(terms: Terms, base: Run, *, batch: Run | None, mode: Run | None, length: Run | None) -> Conflict | None:
    """Lay the variants over ``base``; return what stood against it."""
    model, example = terms.model, terms.example
    identities = (memory(tensor) for tensor in (*model.parameters(), *model.buffers()))
    variants = [] if mode is None else [Variant(graph=mode.graph)]
    if batch is not None and example.batch_size is not None:
        size = example.batch_size
        variants.append(Variant(graph=batch.graph, symbol=_BATCH, size=size, other=size + 1))
    if length is not None and example.length is not None:
        size = example.length
        variants.append(Variant(graph=length.graph, symbol=_LENGTH, size=size, other=size - 1))
    try:
        overlay(
            base.graph,
            variants,
            model_memories=frozenset(identity for identity in identities if identity is not None),
            trains=lambda path: model.get_submodule(path).training,
        )
    except Conflict as conflict:
        return conflict
    return None


def _fix_sizes(graph: fx.Graph, terms: Terms) -> None:
    """Let ``graph`` check the sizes that it is not free of: of the first tensor, and of the first sequence."""
    batch_size, length, first = terms.example.batch_size, terms.example.length, terms.example.first
    dim = terms.example.dim(first[0]) if first is not None else 0
    if batch_size is not None and not terms.frees_batch:
        _expect(graph, dim, batch_size, lambda shape: shape[dim : dim + 1] == (batch_size,))
    if length is not None and terms.fixes_length:
        sizes = (length, batch_size) if dim == 1 else (batch_size, length)
        _expect(graph, 1 - dim, length, lambda shape: shape[:2] == sizes)


def _fix_mode(graph: fx.Graph, *, training: bool) -> None:
    """Let ``graph`` check that the model is in the mode, train or eval, in which it was recorded."""
    behind = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(behind):
        flag = graph.call_module(glue.FLAG)
        check = graph.call_function(glue.expect, (flag, training, "`training` of the model"))
    flag.meta[NOTE], check.meta[NOTE] = Note(owner=""), Note(owner="", is_value=False)


def _expect(graph: fx.Graph, dimension: int, size: int, is_it: Callable[[tuple[int, ...]], bool]) -> None:
    nodes = list(graph.nodes)
    first = next((node for node in nodes if is_it(note_of(node).shape or ())), None)
    if first is None:
        return
    behind = next(node for node in nodes if node.op != "placeholder")
    with graph.inserting_before(behind if first.op == "placeholder" else first.next):
        node = graph.call_function(glue.expect_size, (first, dimension, size, f"argument {first.name}"))
    node.meta[NOTE] = Note(owner="", is_value=False)
