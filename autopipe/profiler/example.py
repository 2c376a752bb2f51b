"""An example batch is made larger or smaller in its own image, so that a model can be measured at other sizes."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.profiler.layers import Example
from autopipe.recorder.example import map_tensors, target_dim_of, tensors

LARGEST = 1 << 32


def batch_of(example: Example, graph: Graph | None = None) -> int:
    """Return the number of samples: the size of the first tensor argument where it carries the batch.

    That is its leading size unless the ``graph`` says otherwise.

    Raises
    ------
    InputError
        If no argument is a tensor with a leading dimension, or it is empty.
    """
    whole = graph.whole_inputs if graph is not None else ()
    for name, value in _named(example, graph):
        dim = _dim(name, graph)
        for tensor in tensors(value) if name not in whole else ():
            if tensor.dim() > dim:
                if tensor.shape[dim] == 0:
                    raise InputError("the example is empty: its first tensor has 0 samples. Give it at least one.")
                return int(tensor.shape[dim])
    raise InputError(
        "the example holds no tensor with a batch dimension, so no micro-batch size can be told. "
        "Pass the inputs as tensors (batch, ...)."
    )


def resize(example: Example, samples: int, graph: Graph | None = None) -> Example:
    """Return ``example`` with ``samples`` samples: its own, from the first on, repeated where they run out.

    Tensors that carry the batch are resized, in their first dimension unless the ``graph`` says otherwise, all else is
    passed on as it is. Tensors are detached, and none shares memory with the example, so that running on them leaves
    it untouched.
    """
    batch = batch_of(example, graph)
    whole = graph.whole_inputs if graph is not None else ()

    def resized(value: Any, dim: int | None) -> Any:
        def pick(tensor: Tensor) -> Tensor:
            if dim is None or tensor.dim() <= dim or tensor.shape[dim] != batch:
                return tensor.detach().clone()
            return tensor.detach().index_select(dim, torch.arange(samples, device=tensor.device) % batch)

        return map_tensors(value, pick)

    parts = [resized(v, None if name in whole else _dim(name, graph)) for name, v in _named(example, graph)]
    count = len(example.args)
    target_dim = 0 if graph is None else _target_dim(example, graph, batch)
    return Example(
        args=tuple(parts[:count]),
        kwargs=dict(zip(example.kwargs, parts[count:], strict=True)),
        target=resized(example.target, target_dim),
    )


def _named(example: Example, graph: Graph | None) -> list[tuple[str, Any]]:
    names = itertools.chain(graph.arguments if graph is not None else (), itertools.repeat(""))
    return [*zip(names, example.args, strict=False), *example.kwargs.items()]


def _target_dim(example: Example, graph: Graph, batch: int) -> int:
    return target_dim_of(example.target, batch, given=graph.target_dim, output_dim=graph.output_dim)


def _dim(name: str, graph: Graph | None) -> int:
    return graph.batch_dims.get(name, 0) if graph is not None else 0


def choose_sizes(batch: int, *, batch_is_free: bool) -> tuple[int, ...]:
    """Return the micro-batch sizes to measure: the example's batch, its half and its quarter, ascending.

    From an example of one sample, 1 and 2; where the batch size is not free, the example's alone.
    """
    if not batch_is_free:
        return (batch,)
    if batch == 1:
        return (1, 2)
    return tuple(sorted({max(1, batch // 4), max(1, batch // 2), batch}))


def asked_sizes(asked: Sequence[int] | None, batch: int, graph: Graph) -> tuple[int, ...]:
    """Return the micro-batch sizes to profile, ascending: those asked for, else what suits the example's batch.

    Raises
    ------
    InputError
        If they are below 1, or the graph holds for one batch size only and they are not it.
    """
    if asked is None:
        return choose_sizes(batch, batch_is_free=graph.batch_is_free)
    sizes = tuple(sorted(set(asked)))
    if not sizes or not 1 <= sizes[0] <= sizes[-1] <= LARGEST:
        raise InputError(f"micro-batch sizes {tuple(asked)} cannot be measured: name some, each of 1 to 2**32 samples.")
    if not graph.batch_is_free and sizes != (batch,):
        raise InputError(
            f"the model was recorded with its batch size burned in, so it can be measured with {batch} samples "
            f"only, not with {sizes}. Make the example as large as a micro-batch is to be."
        )
    return sizes
