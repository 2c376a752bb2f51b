"""A number of layers that is asked for becomes a size: modules with fewer parameters stay whole."""

from collections.abc import Callable

from torch import nn

from autopipe.documents.profile import Profile

Weigher = Callable[[str, nn.Module], int]


def largest_whole(
    model: nn.Module,
    granularity: int,
    *,
    weigh: Weigher,
    is_leaf: Callable[[nn.Module, str], bool],
    is_open: Callable[[nn.Module], bool],
) -> int:
    """Return the cost up to which a module stays whole, so that about ``granularity`` of them have weights.

    Modules are opened from the largest down, all of one size together; of all the counts of modules with weights
    (a norm or a scale has none) that this gives, the one nearest to ``granularity`` is taken, the smaller one of two.

    Parameters
    ----------
    weigh : callable
        The cost of a module at a path, in any unit: `by_parameters`, or `by_profile`.
    is_leaf : callable
        Whether a module at a path is whole at any granularity.
    is_open : callable
        Whether a module is one that is never called, so that it cannot be whole.

    Notes
    -----
    Parameters are known before anything has run, also of a model without memory, and in the models that need a
    pipeline the time of a layer follows them; a profile knows better.
    """
    limit = max((weigh(name, child) for name, child in model.named_children()), default=0)
    best, distance = limit, None
    while True:
        wholes, below = _count(model, limit, weigh, is_leaf, is_open)
        if distance is None or abs(wholes - granularity) < distance:
            best, distance = limit, abs(wholes - granularity)
        if wholes >= granularity or below is None:
            return best
        limit = below


def numel(module: nn.Module) -> int:
    """Return the number of elements of all parameters of a module, tied ones counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def by_parameters(path: str, module: nn.Module) -> int:
    """Return the number of elements of all parameters of a module: its cost before anything was measured."""
    return numel(module)


def by_profile(model: nn.Module, profile: Profile) -> Weigher:
    """Return what weighs a module by the nanoseconds of its layers in ``profile``, a micro-batch forward and backward.

    A layer that holds more than the module, or a module inside it, gives it the share that it has of its parameters.
    """
    costs = [(layer.name, set(layer.parameters), layer.costs[-1]) for layer in profile.layers]
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def weigh(path: str, module: nn.Module) -> int:
        own = {f"{path}.{name}" if path else name for name, _ in module.named_parameters()}
        total = 0.0
        for name, held, cost in costs:
            if not path or name == path or name.startswith(f"{path}."):
                share = 1.0
            else:
                held_elements = sum(sizes.get(parameter, 0) for parameter in held)
                share = sum(sizes.get(parameter, 0) for parameter in held & own) / max(held_elements, 1)
            total += share * (cost.forward_ns + cost.backward_ns)
        return round(total)

    return weigh


def _count(
    model: nn.Module,
    limit: int,
    weigh: Weigher,
    is_leaf: Callable[[nn.Module, str], bool],
    is_open: Callable[[nn.Module], bool],
) -> tuple[int, int | None]:
    """Return how many modules with weights are whole at ``limit``, and the size just below the largest to open."""
    count, largest = 0, 0
    pending = [("", model)]
    while pending:
        path, module = pending.pop()
        size = weigh(path, module) if path else 0
        stays = path and (is_leaf(module, path) or (size <= limit and not is_open(module)))
        if stays:
            count += any(parameter.dim() > 1 for parameter in module.parameters())
            if not is_leaf(module, path):
                largest = max(largest, size)
        else:
            pending += [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
    return count, largest - 1 if largest > 0 else None
