"""What a model raises while it is recorded comes as an error of ours, with its own as the cause."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autopipe.errors import AutopipeError, CaptureError


@contextmanager
def explained(model: Any) -> Iterator[None]:
    """Turn what ``model`` raises inside into an error of ours.

    Raises
    ------
    CaptureError
        If anything but one of our own errors or an interrupt was raised.
    """
    try:
        yield
    except AutopipeError:
        raise
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} raised {type(error).__name__} while it ran on its example: {error}. Call it with "
            "these arguments by itself first: it must run before it can be recorded."
        ) from error
