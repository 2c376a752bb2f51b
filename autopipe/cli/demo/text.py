"""The demo's data: the source files of the Python standard library, real text that every machine has."""

import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from autopipe.errors import InputError

LARGEST = 4 * 1024**2


class Batch(NamedTuple):
    """Byte values and, shifted by one, what follows each: both (batch, time), int64."""

    inputs: Tensor
    target: Tensor


def read_text(folder: Path | None = None, *, largest: int = LARGEST) -> Tensor:
    """Return up to ``largest`` bytes of the Python sources in ``folder``, file after file by name, as uint8.

    Raises
    ------
    InputError
        If the folder (by default that of the standard library) holds none.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= largest:
            break
    if not text:
        raise InputError(f"{folder} holds no Python source to train on: the demo needs those of the standard library.")
    return torch.frombuffer(text[:largest], dtype=torch.uint8)


def draw_batch(text: Tensor, *, step: int, batch: int, time: int) -> Batch:
    """Return the batch of training step ``step``: places drawn from the step alone, equal on every rank."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - time, (batch,), generator=generator)
    windows = text[starts[:, None] + torch.arange(time + 1)].long()
    return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
