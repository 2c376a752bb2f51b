"""An example batch is made larger or smaller in its own image, so that a model can be measured at other sizes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.profiler.layers import Example
from autopipe.recorder.example import map_tensors, tensors


def batch_of(example: Example) -> int:
    """Return the number of samples: the leading size of the first tensor argument that has one.

    Raises
    ------
    InputError
        If no argument is a tensor with a leading dimension, or it is empty.
    """
    for tensor in tensors((example.args, example.kwargs)):
        if tensor.dim() > 0:
            if tensor.shape[0] == 0:
                raise InputError("the example is empty: its first tensor has 0 samples. Give it at least one.")
            return int(tensor.shape[0])
    raise InputError(
        "the example holds no tensor with a batch dimension, so no micro-batch size can be told. "
        "Pass the inputs as tensors (batch, ...)."
    )


def resize(example: Example, samples: int) -> Example:
    """Return ``example`` with ``samples`` samples: its own, from the first on, repeated where they run out.

    Tensors whose leading size is the batch are resized, all else is passed on as it is. Tensors are
    detached, and none shares memory with the example, so that running on them leaves it untouched.
    """
    batch = batch_of(example)

    def pick(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != batch:
            return tensor.detach().clone()
        return tensor.detach()[torch.arange(samples, device=tensor.device) % batch]

    return Example(*(map_tensors(part, pick) for part in example))


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
    if not sizes or sizes[0] < 1:
        raise InputError(f"micro-batch sizes {tuple(asked)} cannot be measured: name sizes of at least 1 sample.")
    if not graph.batch_is_free and sizes != (batch,):
        raise InputError(
            f"the model was recorded with its batch size burned in, so it can be measured with {batch} samples "
            f"only, not with {sizes}. Make the example as large as a micro-batch is to be."
        )
    return sizes
