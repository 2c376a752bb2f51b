"""Memory that has run out says nothing about a model: it is told apart from all else that a run may raise."""

import torch


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether ``error`` is an allocator's; the CPU's raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
