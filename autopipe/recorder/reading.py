"""Python may read a tensor's values where they shape no graph, or where the graph checks that they stay the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from autopipe.recorder import glue
from autopipe.recorder.notes import NOTE, note_of
from autopipe.recorder.refusal import Unwritable, calling_frame, user_frame, where
from autopipe.recorder.validation import Validation, validation_of


class Reads:
    """Decides whether a value may be read, and writes down the check of one that must stay what it was.

    ``emit`` writes a node, ``argument`` gives the node of a tensor, and ``specialises`` tells whether the module that
    runs now may read any value, because the graph is to hold for that value only.
    """

    def __init__(
        self, emit: Callable[..., fx.Node], argument: Callable[[Any], Any], specialises: Callable[[], bool]
    ) -> None:
        self._emit = emit
        self._argument = argument
        self._specialises = specialises

    def allow_value(self, tensor: Any, value: Any) -> bool:
        """Return whether Python may read ``value`` of ``tensor``."""
        if not isinstance(value, (bool, int, float, list)):
            return False
        frame = user_frame()
        validation = _validation()
        if validation is not None and not (validation.is_whole and isinstance(value, bool)):
            return True
        if validation is None and not self._specialises():
            return False
        if not isinstance(tensor, Tensor):
            return validation is not None
        what = f"a value that the model reads at {where(frame)}"
        return self._write(tensor, glue.expect_value, value, what) is not None

    def allow_shape(self, tensor: Any) -> bool:
        """Return whether Python may read the shape of ``tensor``, which depends on values."""
        if _validation() is not None:
            return True
        if not isinstance(tensor, Tensor) or not self._specialises():
            return False
        what = f"a tensor that the model makes at {where(user_frame())}"
        for dimension, size in enumerate(tensor.shape):
            node = self._write(tensor, glue.expect_size, dimension, size, what)
            if node is None:
                return False
            # Its shape is a fact now.
            node.meta[NOTE] = replace(note_of(node), is_tainted=False)
        return True

    def _write(self, tensor: Tensor, check: Callable[..., None], *expected: Any) -> fx.Node | None:
        """Write down a check of ``tensor`` and return the tensor's node, None if it has none."""
        try:
            node: fx.Node = self._argument(tensor)
        except Unwritable:
            return None
        self._emit("call_function", check, (node, *expected))
        return node


def _validation() -> Validation | None:
    """Return the validation for which a value is read now, by the user's code or by torch's own; None if for more."""
    frames = (calling_frame(), user_frame())
    return next((found for frame in frames if frame and (found := validation_of(frame)) is not None), None)
