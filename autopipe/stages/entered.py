"""A leaf is given to a stage as a tensor that is neither leaf nor view, so that it may begin in place."""

import torch
from torch import Tensor


def entered(leaf: Tensor) -> Tensor:
    """Return a tensor with the values and strides of ``leaf``, over the same memory where that can be."""
    # Autograd takes the result of _unsafe_view for a tensor of its own, with its own version.
    tensor = torch.ops.aten._unsafe_view(leaf, leaf.shape)
    if tensor.stride() == leaf.stride():
        return tensor
    # It picks strides of its own along dimensions of one element, and kernels choose by strides how they add.
    return leaf.clone()
