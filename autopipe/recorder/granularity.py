"""A number of layers that is asked for becomes a size: modules with fewer parameters stay whole."""

from collections.abc import Callable

from torch import nn


def largest_whole(
    model: nn.Module,
    granularity: int,
    *,
    is_leaf: Callable[[nn.Module, str], bool],
    is_open: Callable[[nn.Module], bool],
) -> int:
    """Return the number of parameters up to which a module stays whole, so that about ``granularity`` have weights.

    Modules are opened from the largest down, all of one size together; of all the counts of modules with weights
    (a norm or a scale has none) that this gives, the one nearest to ``granularity`` is taken, the smaller one of two.

    Parameters
    ----------
    is_leaf : callable
        Whether a module at a path is whole at any granularity.
    is_open : callable
        Whether a module is one that is never called, so that it cannot be whole.

    Notes
    -----
    Shares are counted in parameters: they are known before anything has run, also of a model without memory, and
    in the models that need a pipeline the time of a layer follows them.
    """
    limit = max((numel(child) for child in model.children()), default=0)
    best, distance = limit, None
    while True:
        wholes, below = _count(model, limit, is_leaf, is_open)
        if distance is None or abs(wholes - granularity) < distance:
            best, distance = limit, abs(wholes - granularity)
        if wholes >= granularity or below is None:
            return best
        limit = below


def numel(module: nn.Module) -> int:
    """Return the number of elements of all parameters of a module, tied ones counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _count(
    model: nn.Module, limit: int, is_leaf: Callable[[nn.Module, str], bool], is_open: Callable[[nn.Module], bool]
) -> tuple[int, int | None]:
    """Return how many modules with weights are whole at ``limit``, and the size just below the largest to open."""
    count, largest = 0, 0
    pending = [("", model)]
    while pending:
        path, module = pending.pop()
        size = numel(module)
        stays = path and (is_leaf(module, path) or (size <= limit and not is_open(module)))
        if stays:
            count += any(parameter.dim() > 1 for parameter in module.parameters())
            if not is_leaf(module, path):
                largest = max(largest, size)
        else:
            pending += [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
    return count, largest - 1 if largest > 0 else None
