"""A whole model's state goes into one file: torch's format or safetensors."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autopipe.documents.files import write_whole
from autopipe.errors import InputError

SAFETENSORS = ".safetensors"


def write_state(state: Mapping[str, Tensor], path: str | Path) -> None:
    """Write names with tensors to ``path``; as safetensors where its name ends so.

    In safetensors a tensor that has several names is written under the first of them; the others stand in the
    file's metadata, as ``name: first name``, as Hugging Face's ``save_pretrained`` does it.

    Raises
    ------
    InputError
        If safetensors is not installed.
    DocumentError
        If the file cannot be written.
    """
    if Path(path).suffix == SAFETENSORS:
        write_whole(_safetensors(state), path)
    else:
        write_object(dict(state), path)


def write_object(value: Any, path: str | Path) -> None:
    """Write what ``torch.load(path, weights_only=True)`` then returns."""
    content = io.BytesIO()
    torch.save(value, content)
    write_whole(content.getbuffer(), path)


def _safetensors(state: Mapping[str, Tensor]) -> bytes:
    try:
        from safetensors.torch import save
    except ImportError:
        raise InputError(
            "safetensors is not installed: pip install safetensors, or write a file whose name ends in .pt."
        ) from None
    first: dict[tuple[Any, ...], str] = {}
    kept: dict[str, Tensor] = {}
    notes = {"format": "pt"}
    for name, tensor in state.items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        home = first.setdefault(place, name) if tensor.numel() else name
        if home == name:
            kept[name] = tensor.contiguous()
        else:
            notes[name] = home
    return save(kept, metadata=notes)
