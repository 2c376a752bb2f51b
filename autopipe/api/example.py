"""An example is the model's arguments, in whichever form is at hand."""

from typing import Any


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example as positional and keyword arguments of the model."""
    if type(example).__name__ == "Arguments":
        return example.args, example.kwargs
    if isinstance(example, dict):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    return (example,), {}
