"""The norm of all gradients, over all ranks, tied parameters once, in the order of the plain model."""

import functools

import torch
from torch import Tensor, nn

from autopipe.documents.graph import Parameter
from autopipe.executor.sharded import whole
from autopipe.transport.endpoint import Endpoint


def parameter_norms(
    listed: tuple[Parameter, ...], owned: dict[str, nn.Parameter], norm_type: float, endpoint: Endpoint
) -> Tensor:
    """Return the norm of each gradient of the whole model, in the order of ``listed``; all ranks call it.

    Parameters
    ----------
    listed : tuple of Parameter
        All parameters of the model (no buffers), in its own order.
    owned : mapping
        The parameters that this rank counts.

    Returns
    -------
    Tensor
        Shape (parameters that have a gradient,), so that its norm is what
        `torch.nn.utils.get_total_norm` gives for the plain model.
    """
    norms = torch.zeros(2, len(listed), dtype=torch.float64)
    total = endpoint.open_sum(norms.numel())
    for position, parameter in enumerate(listed):
        gradient = owned[parameter.name].grad if parameter.name in owned else None
        if gradient is None:
            continue
        norm = whole(torch.linalg.vector_norm(gradient, norm_type))
        if endpoint.replica == 0:
            norms[0, position], norms[1, position] = norm, 1.0
    norms = total.finish(norms.flatten()).view_as(norms)
    dtypes = {getattr(torch, parameter.dtype) for parameter in listed}
    dtype = functools.reduce(torch.promote_types, dtypes)
    return norms[0][norms[1] > 0].to(endpoint.device, dtype)
