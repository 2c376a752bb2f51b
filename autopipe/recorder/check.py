"""A recorded graph is run beside the eager model on other data: outputs and gradients must be equal."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from autopipe.errors import CaptureError, InputError
from autopipe.recorder.example import Example, tensors, with_batch, with_length
from autopipe.recorder.exhaustion import is_out_of_memory
from autopipe.recorder.glue import modes_kept
from autopipe.recorder.notes import note_of
from autopipe.recorder.settling import MODEL_ERRORS, Terms, mode_of
from autopipe.recorder.snapshot import Snapshot

RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-6
_SHORTEST = 16


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one forward and backward gave: named outputs, gradients by parameter, buffers afterwards."""

    outputs: dict[str, Any]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How a recorded graph differs from the model: a sentence, and the open module in which it first does.

    ``is_refusal`` tells that the graph refused its input, ``is_of_batch`` that at the recorded batch size it does
    not differ, ``is_of_length`` that at the recorded length of sequences it does not.
    """

    sentence: str
    owner: str
    is_refusal: bool = False
    is_of_batch: bool = False
    is_of_length: bool = False


def find_difference(module: fx.GraphModule, terms: Terms) -> Difference | None:
    """Return how ``module`` differs from the model it was recorded from; None if it computes the same.

    Outputs, the gradient of every parameter and the buffers afterwards are compared, on other data, at another
    batch size where that is free, and in both modes: bit for bit; within 1e-4 where the model itself is not
    reproducible, or was recorded on its branch for compilers, whose sums differ.
    """
    difference = _difference_in_mode(module, terms)
    if difference is not None or not terms.frees_mode:
        return difference
    with mode_of(terms.model, module, training=not terms.model.training), torch.no_grad():
        return _difference_in_mode(module, terms)


def _difference_in_mode(module: fx.GraphModule, terms: Terms) -> Difference | None:
    """Return how ``module`` differs in the mode that it is in, and whether that is of batch size or length alone."""
    snapshot = Snapshot(terms.model)
    example = with_batch(terms.example, _other_size(terms)) if terms.frees_batch else terms.example
    length = _other_length(terms, example) if terms.frees_length else None
    shorter = None if length is None else with_length(example, length)
    candidates: tuple[Example, ...] = (shuffled(shorter or example), shorter or example, example, terms.example)
    if terms.specialises and terms.frees_batch:
        candidates = candidates[:-1]
    difference = _compare_some(module, terms, snapshot, candidates)
    if difference is None:
        return None
    if shorter is not None and _compare_some(module, terms, snapshot, (shuffled(example), example)) is None:
        return dataclasses.replace(difference, is_of_length=True)
    if terms.frees_batch:
        again = _compare_some(module, terms, snapshot, (shuffled(terms.example), terms.example))
        return dataclasses.replace(difference, is_of_batch=again is None)
    return difference


def _other_size(terms: Terms) -> int:
    """Return a batch size that the model was not recorded at: half the example's, or two samples more than few."""
    size = terms.example.batch_size or 0
    return size // 2 if size > 3 else size + 2


def _other_length(terms: Terms, example: Example) -> int | None:
    """Return a length of sequences that the model was not recorded at, None where all are too short.

    Long sequences are cut until there is half as much to compute as in the user's own example.
    """
    length = example.length or 0
    halved = length * (terms.example.batch_size or 1) // (2 * (example.batch_size or 1))
    return min(length - 2, max(_SHORTEST, halved)) if length > 3 else None


def _compare_some(
    module: fx.GraphModule, terms: Terms, snapshot: Snapshot, examples: Sequence[Example]
) -> Difference | None:
    """Compare on the first of ``examples`` that the model takes.

    Raises
    ------
    CaptureError
        If it takes none of them, forward and backward: nothing could then be compared.
    """
    difference = None
    for example in examples:
        expected = _try_outcome(terms.model, snapshot, example)
        if isinstance(expected, Outcome):
            difference = _compare(module, terms, snapshot, example, expected)
            if difference is None or not (terms.specialises and difference.is_refusal):
                return difference
    if difference is not None:
        return difference
    raise CaptureError(
        f"{type(terms.model).__name__} runs forward on the example but fails when it is run forward and backward to "
        f"check its recording: {str(expected).rstrip('.')}. Pass an example that it can be trained on, or check=False."
    )


def shuffled(example: Example) -> Example:
    """Return other data in the image of the example: its samples rolled, and each turned around in dimension 1."""

    def shuffle(name: str, tensor: Tensor) -> Tensor:
        changed, dim = tensor.detach(), example.dim(name)
        if example.carries(name, tensor):
            changed = changed.roll(1, dim)
            changed = changed.flip(0 if dim else 1) if changed.dim() > 1 else changed
        return changed.clone().requires_grad_(tensor.requires_grad)

    return dataclasses.replace(example, values=example.change(shuffle))


def _compare(
    module: fx.GraphModule, terms: Terms, snapshot: Snapshot, example: Example, expected: Outcome
) -> Difference | None:
    model, is_refusal = terms.model, False
    try:
        found = _outcome(model, module, example)
        difference = _first_unequal(expected, found, exact=True)
        if difference is not None:
            snapshot.restore()
            again = None if terms.compiling else _try_outcome(model, snapshot, example)
            if not isinstance(again, Outcome) or _first_unequal(expected, again, exact=True) is not None:
                difference = _first_unequal(expected, found, exact=False)
    except (*MODEL_ERRORS, InputError) as error:
        if is_out_of_memory(error):
            raise
        difference, is_refusal = f"it fails with {type(error).__name__}: {error}", isinstance(error, InputError)
    finally:
        snapshot.restore()
    if difference is None:
        return None
    culprit, owner = _first_unequal_node(module, terms, snapshot, example)
    mode = "training" if model.training else "evaluation"
    return Difference(
        sentence=(
            f"in {mode} mode the recorded graph of {type(model).__name__} does not compute what the model does: "
            f"{difference}{culprit}. Training the graph would train another model. Pass the module concerned as "
            "leaf=, so that it is called whole."
        ),
        owner=owner,
        is_refusal=is_refusal,
    )


def _try_outcome(model: nn.Module, snapshot: Snapshot, example: Example) -> Outcome | str:
    """Return the model's outcome, or its error if it does not take such data."""
    try:
        return _outcome(model, model, example)
    except MODEL_ERRORS as error:
        if is_out_of_memory(error):
            raise
        return f"{type(error).__name__}: {error}"
    finally:
        snapshot.restore()


def _outcome(model: nn.Module, module: nn.Module, example: Example) -> Outcome:
    args, kwargs = with_batch(example, example.batch_size or 0).call_args()
    if module is not model:
        kwargs = {name: kwargs[key] for name, key in example.keywords.items() if key in kwargs}
    inputs = [tensor for tensor in tensors((args, kwargs)) if tensor.requires_grad]
    with modes_kept():
        # A GraphModule's own call prints what goes wrong, which here is for us to say.
        output = module(*args, **kwargs) if module is model else nn.Module.__call__(module, *args, **kwargs)
    outputs = dict(_named_parts(output, ""))
    losses = [_weighted_sum(part) for part in outputs.values() if isinstance(part, Tensor) and part.requires_grad]
    named: list[tuple[str, Tensor]] = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    named += [(f"argument {index}", tensor) for index, tensor in enumerate(inputs)]
    gradients: Sequence[Tensor | None] = [None] * len(named)
    if losses and named:
        gradients = torch.autograd.grad(torch.stack(losses).sum(), [tensor for _, tensor in named], allow_unused=True)
    return Outcome(
        outputs=outputs,
        gradients={name: gradient for (name, _), gradient in zip(named, gradients, strict=True)},
        buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
    )


def _weighted_sum(output: Tensor) -> Tensor:
    """Return a sum of all elements of ``output``, each with its own weight, so that every element is told apart."""
    real = torch.view_as_real(output) if output.is_complex() else output
    weights = torch.arange(real.numel(), device=real.device).reshape(real.shape).mul(0.7).cos().add(1.5)
    return (real.float() * weights).sum()


def _named_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every part of a structured output under its path, its containers' classes among them."""
    if isinstance(value, Tensor):
        yield path, value
        return
    yield f"{path} (class)", type(value).__name__
    if isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif dataclasses.is_dataclass(value):
        items = [(f"{path}.{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        items = []
        if isinstance(value, (bool, int, float, str)):
            yield path, value
    for name, item in items:
        yield from _named_parts(item, name)


def _first_unequal(expected: Outcome, found: Outcome, *, exact: bool) -> str | None:
    """Return what differs first, None if nothing does."""
    for what, mine, theirs in (
        ("output", expected.outputs, found.outputs),
        ("the gradient of", expected.gradients, found.gradients),
        ("buffer", expected.buffers, found.buffers),
    ):
        for name in {**mine, **theirs}:
            if name not in mine or name not in theirs or not _equal(mine[name], theirs[name], exact=exact):
                return f"{what} {name} differs"
    return None


def _equal(expected: Any, found: Any, *, exact: bool) -> bool:
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        return type(expected) is type(found) and bool(expected == found)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    if expected.layout is not torch.strided or found.layout is not torch.strided:
        # The gradient of an embedding may be sparse, which nothing compares.
        expected, found = expected.to_dense(), found.to_dense()
    if torch.equal(expected, found):
        return True
    relative, absolute = (0.0, 0.0) if exact else (RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE)
    return torch.allclose(expected.detach(), found.detach(), rtol=relative, atol=absolute, equal_nan=True)


class _Found(Exception):
    """Raised at the first node whose value differs."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node.name)
        self.node = node


class _Comparison(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, values: dict[str, Tensor]) -> None:
        super().__init__(module)
        self.values = values

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except (*MODEL_ERRORS, InputError):
            raise _Found(n) from None
        expected = self.values.get(n.name)
        if expected is not None and not _equal(expected, result, exact=True):
            raise _Found(n)
        return result


def _first_unequal_node(module: fx.GraphModule, terms: Terms, snapshot: Snapshot, example: Example) -> tuple[str, str]:
    """Return a phrase that names the first node whose value is not the model's, and its open module; else ("", "")."""
    try:
        recorded = terms.run(example, keep=True)
        snapshot.restore()
        values = with_batch(example, example.batch_size or 0).values.values()
        with modes_kept():
            _Comparison(module, recorded.values).run(*values)
    except _Found as found:
        owners = {node.name: note_of(node).owner for node in recorded.graph.nodes}
        node = found.node
        return f"; the first node that differs is {node.name} ({node.op} of {node.target})", owners.get(node.name, "")
    except MODEL_ERRORS:
        pass  # The search for a culprit is a courtesy: the difference itself is reported all the same.
    finally:
        snapshot.restore()
    return "", ""
