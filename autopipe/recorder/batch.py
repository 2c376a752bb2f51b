"""In which dimension arguments carry the batch is found: a part of the samples alone gives that part of the output."""

import dataclasses
import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autopipe.errors import InputError
from autopipe.recorder.example import Example, is_sequence, own, sized, tensors, with_batch
from autopipe.recorder.exhaustion import is_out_of_memory
from autopipe.recorder.settling import MODEL_ERRORS, mode_of
from autopipe.recorder.snapshot import preserved
from autopipe.recorder.stand_ins import is_weightless

_TRIALS = 64
_WHOLE = -1
_TOLERANCE = 1e-4
_ROUNDINGS = 8


def find_batch(model: nn.Module, example: Example, given: Mapping[str, int | None]) -> Example:
    """Return the example with the dimensions in which its arguments, and the model's output, carry the batch.

    Where an argument can only carry it in its first dimension, as images do, nothing is tried. Otherwise the model is
    run in evaluation mode on all samples and on each half of them, for one assumption after the other. Samples do
    not change each other, and positions of a sequence do: so the first assumption under which the halves of the
    output are what the halves of the input give is the right one. Without any, or without memory, what is not given is
    taken to carry the batch in its first dimension where that is as large as the first tensor's, and the output where
    that tensor does.

    Parameters
    ----------
    given : mapping
        The dimension of arguments by name, None for those that do not carry the batch.

    Raises
    ------
    InputError
        If an argument is not there, or has no such dimension.
    """
    _check(example, given)
    assumptions = _assumptions(example, given)
    chosen = assumptions[0]
    output_dim = chosen.dim(chosen.first[0]) if chosen.first is not None else 0
    if not is_weightless(model) and (len(assumptions) > 1 or given):
        with preserved(model), mode_of(model, training=False), torch.no_grad():
            known: dict[int, list[Tensor] | None] = {}
            for assumed in assumptions:
                found = _dimension_of_parts(model, assumed, known)
                if found is not None:
                    chosen, output_dim = assumed, found
                    break
    dims = {name: dim for name, dim in chosen.dims.items() if dim}
    return dataclasses.replace(chosen, dims=dims, output_dim=output_dim)


def _check(example: Example, given: Mapping[str, int | None]) -> None:
    for name, dim in given.items():
        if name not in example.values:
            known = ", ".join(example.values)
            raise InputError(f"batch_dims names {name}, and the example has {known}: name arguments of the model.")
        if dim is not None and not any(0 <= dim < tensor.dim() for tensor in tensors(example.values[name])):
            raise InputError(f"batch_dims says dimension {dim} of {name}, which has none such: they count from 0.")


def _assumptions(example: Example, given: Mapping[str, int | None]) -> list[Example]:
    """Return the example with each assumption about who carries the batch where, the most usual ones first."""
    first = next(((n, t) for n, v in example.values.items() for t in tensors(v) if given.get(n, 0) is not None), None)
    if first is None:
        return [example]
    name, tensor = first
    is_open = name not in given and is_sequence(tensor) and 0 not in tensor.shape[:2]
    ranked: list[tuple[int, Example]] = []
    for dim in (0, 1) if is_open else (given.get(name, 0),):
        assert dim is not None
        size = tensor.shape[dim] if tensor.dim() > dim else None
        places = [
            [given[other]] if other in given else ([dim] if other == name else _places(value, size, dim))
            for other, value in example.values.items()
        ]
        for chosen in itertools.islice(itertools.product(*map(enumerate, places)), _TRIALS):
            by_name = dict(zip(example.values, (place for _, place in chosen), strict=True))
            dims = {other: place for other, place in by_name.items() if place is not None}
            assumed = dataclasses.replace(example, dims=dims, whole=frozenset(by_name.keys() - dims.keys()))
            ranked.append((dim + sum(rank for rank, _ in chosen), sized(assumed)))
    return [assumed for _, assumed in sorted(ranked, key=lambda pair: pair[0])]


def _places(value: object, size: int | None, usual: int) -> list[int | None]:
    """Return where the tensors of an argument may carry a batch of ``size``, the usual dimension first.

    Equal sizes may be of chance, as in a square mask for sequences as long as the batch is large: None is last.
    """
    places = {d for t in tensors(value) for d in range(min(t.dim(), 3)) if t.shape[d] == size}
    found: list[int | None] = [*sorted(places, key=lambda place: (place != usual, place))]
    is_clear = len(found) == 1 and isinstance(value, Tensor) and value.dim() == 1
    return found if is_clear else [*found, None]


def _dimension_of_parts(model: nn.Module, example: Example, known: dict[int, list[Tensor] | None]) -> int | None:
    """Return in which dimension the outputs for parts of the samples are parts of the output; None if they are not.

    The output for the example as it is, under 0, is ``known`` once it has been computed.
    """
    if example.batch_size is None:
        return None
    # One sample has no parts: it is taken twice.
    whole = with_batch(example, max(2, example.batch_size))
    assert whole.batch_size is not None
    half = whole.batch_size // 2
    key = 0 if whole.batch_size == example.batch_size else id(example)
    if key not in known:
        known[key] = _outputs(model, whole)
    expected = known[key]
    halves = [(half, whole.batch_size - half), (0, half)]
    found: list[int] = []
    scalars: list[list[Tensor]] = []
    for start, count in halves:
        outputs = None if expected is None else _outputs(model, _part(whole, start, count))
        if expected is None or outputs is None or len(outputs) != len(expected):
            return None
        pairs = list(zip(expected, outputs, strict=True))
        dims = [_part_dim(everything, part, start, count) for everything, part in pairs if everything.dim()]
        if None in dims:
            return None
        found += [dim for dim in dims if dim is not None and dim != _WHOLE]
        scalars.append([part * (count / whole.batch_size) for part in outputs if part.is_floating_point()])
    assert expected is not None
    if found:
        return found[0]
    # A loss of the model's own is the mean of those of the parts.
    means = [sum(parts[1:], parts[0]) for parts in zip(*scalars, strict=True)]
    wholes = [output for output in expected if output.is_floating_point()]
    return 0 if means and all(map(_close, wholes, means)) else None


def _part(example: Example, start: int, count: int) -> Example:
    def narrow(name: str, tensor: Tensor) -> Tensor:
        return own(tensor.detach().narrow(example.dim(name), start, count) if example.carries(name, tensor) else tensor)

    return dataclasses.replace(example, values=example.change(narrow), batch_size=count)


def _outputs(model: nn.Module, example: Example) -> list[Tensor] | None:
    """Return the tensors that the model gives for an example in evaluation mode; None if it does not take it."""
    args, kwargs = with_batch(example, example.batch_size or 0).call_args()
    try:
        return [tensor.clone() for tensor in tensors(model(*args, **kwargs))]
    except MODEL_ERRORS as error:
        if is_out_of_memory(error):
            raise
        return None


def _part_dim(everything: Tensor, part: Tensor, start: int, count: int) -> int | None:
    """Return the dimension of which ``part`` is a part, `_WHOLE` if it is all of it, None if it is neither.

    Where samples are compared with each other (images with texts), it is a part of several, and the first is returned.
    """
    if part.dim() != everything.dim() or part.dtype != everything.dtype:
        return None
    dims = [dim for dim in range(everything.dim()) if part.shape[dim] != everything.shape[dim]]
    for dim in dims:
        if part.shape[dim] != count:
            return None
        everything = everything.narrow(dim, start, count)
    if not _close(everything, part):
        return None
    return dims[0] if dims else _WHOLE


def _close(mine: Tensor, theirs: Tensor) -> bool:
    if mine.is_complex():
        mine, theirs = torch.view_as_real(mine), torch.view_as_real(theirs)
    if not mine.is_floating_point():
        return torch.equal(mine, theirs)
    tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(mine.dtype).eps)
    scale = mine[mine.isfinite()].abs().max().item() if mine.isfinite().any() else 0.0
    return torch.allclose(mine, theirs, rtol=0.0, atol=tolerance * max(scale, math.ulp(0.0)), equal_nan=True)
