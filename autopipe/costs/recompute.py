"""Layers that recompute keep what they read instead of what they save, and run their forward again."""

from collections.abc import Collection

import msgspec

from autopipe.costs.size import SizedProfile
from autopipe.documents.profile import Cost
from autopipe.errors import InputError


def recomputing(sized: SizedProfile, layers: Collection[int]) -> SizedProfile:
    """Return ``sized`` with ``layers`` recomputing, each alone: what their intervals cost then is read off as ever.

    Parameters
    ----------
    layers : collection of int
        Positions of layers, in any number of stages: an interval costs what those inside it make of it.

    Raises
    ------
    InputError
        If one of them cannot recompute, or its recompute was not measured.
    """
    chosen = sized.recompute.union(layers)
    costs = list(sized.costs)
    for index in chosen - sized.recompute:
        costs[index] = _recomputed(sized, index)
    kept = []
    for value, before in zip(sized.profile.values, sized.kept_from, strict=True):
        recomputes = value.producer in chosen
        saver = value.saved_at if recomputes and before == value.producer else before
        readers = chosen.intersection(value.readers or value.consumers)
        kept.append(min((*readers, *(() if saver is None else (saver,))), default=None))
    return msgspec.structs.replace(sized, costs=tuple(costs), kept_from=tuple(kept), recompute=chosen)


def can_recompute(cost: Cost) -> bool:
    """Tell whether a layer with this cost can recompute."""
    return cost.recompute_ns is not None and cost.saved_recompute_bytes is not None


def _recomputed(sized: SizedProfile, index: int) -> Cost:
    cost = sized.costs[index]
    if cost.recompute_ns is None or cost.saved_recompute_bytes is None:
        name = sized.profile.layers[index].name
        raise InputError(
            f"layer {index} ({name}) cannot recompute: the profile has no cost for it, because it has no backward, "
            "writes to its input, or was not measured. Leave it out, or profile the model again."
        )
    transient, forward_transient = cost.transient_recompute_bytes, cost.forward_transient_recompute_bytes
    return msgspec.structs.replace(
        cost,
        backward_ns=cost.backward_ns + cost.recompute_ns,
        input_grad_ns=None if cost.input_grad_ns is None else cost.input_grad_ns + cost.recompute_ns,
        saved_bytes=cost.saved_recompute_bytes,
        transient_bytes=cost.saved_bytes + cost.transient_bytes if transient is None else transient,
        ending_transient_bytes=cost.ending_transient_recompute_bytes,
        forward_transient_bytes=cost.forward_transient_bytes if forward_transient is None else forward_transient,
    )
