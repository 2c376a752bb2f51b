"""An example is the model's arguments, in whichever form is at hand."""

from typing import Any

import msgspec

from autopipe.documents.graph import Graph
from autopipe.errors import InputError


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example as positional and keyword arguments of the model."""
    if type(example).__name__ == "Arguments":
        return example.args, example.kwargs
    if isinstance(example, dict):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    return (example,), {}


def with_target_dim(graph: Graph, dimension: int | None) -> Graph:
    """Return the graph with the dimension in which targets carry the batch, if one is given.

    Raises
    ------
    InputError
        If it is negative.
    """
    if dimension is None:
        return graph
    if dimension < 0:
        raise InputError(f"target_dim={dimension} is no dimension: count from 0.")
    return msgspec.structs.replace(graph, target_dim=dimension)
