"""What is no tensor of the model is written in torch's own format, of which only plain values are ever read."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from autopipe.errors import DocumentError, InputError

_WEIGHTS_ONLY = (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError)


def pack(values: dict[str, Any]) -> bytes:
    """Return ``values`` as bytes that `unpack` reads.

    Raises
    ------
    InputError
        If a value is neither plain (numbers, strings, lists, dictionaries) nor a tensor; the message names its key.
    """
    content = _dump(values)
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError as error:
        for key, value in values.items():
            try:
                torch.load(io.BytesIO(_dump(value)), weights_only=True)
            except pickle.UnpicklingError:
                raise InputError(
                    f"{key} holds more than numbers, strings, tensors and lists or dictionaries of them, and a "
                    f"checkpoint holds no code: {_reason(error)}."
                ) from error
        raise
    return content


def unpack(content: bytes, origin: str | Path) -> dict[str, Any]:
    """Return what `pack` was given.

    Raises
    ------
    DocumentError
        If ``content`` is something else.
    """
    try:
        values = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except _WEIGHTS_ONLY as error:
        raise DocumentError(f"{origin} cannot be read ({_reason(error)}): it was not written by a save.") from error
    if not isinstance(values, dict):
        raise DocumentError(f"{origin} holds a {type(values).__name__}: it was not written by a save.")
    return values


def _dump(value: Any) -> bytes:
    content = io.BytesIO()
    try:
        torch.save(value, content)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(f"what was to be saved cannot be written down: {error}.") from error
    return content.getvalue()


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line]
    return (lines or str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
