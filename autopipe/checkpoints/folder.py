"""A folder of checkpoints: each is written under a hidden name and renamed when it is whole.

::

    checkpoints/
    |-- step-00000200/          whole: only what is whole bears such a name
    |   |-- checkpoint.json     what was trained, how far
    |   |-- training.pt         groups of the optimizer, scheduler, scaler, random state, data position
    |   |-- .metadata           where each tensor is
    |   `-- __0_0.distcp ...    the tensors, one file for each process that wrote
    `-- .step-00000300.9f2c/    being written, or left over by a crash

Renaming is one step for the file system, so that a crash at any moment leaves the checkpoints before.
"""

import os
import re
import secrets
import shutil
from pathlib import Path

from autopipe.errors import DocumentError

DOCUMENT = "checkpoint.json"
_WHOLE = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_HIDDEN = re.compile(r"\.step-\d{8,}\..*")


def whole_ones(folder: str | Path) -> tuple[Path, ...]:
    """Return the checkpoints in ``folder`` that are whole, by step; of two of one step the later is last."""
    try:
        found = [(match, path) for path in Path(folder).iterdir() if (match := _WHOLE.fullmatch(path.name))]
    except (OSError, ValueError):  # a name that no file can have is a ValueError
        return ()
    found.sort(key=lambda item: (int(item[0][1]), int(item[0][2] or 0)))
    return tuple(path for _, path in found)


def newest(folder: str | Path) -> Path | None:
    """Return the checkpoint that ``folder`` is, else the newest that it holds; None without one."""
    try:
        if (Path(folder) / DOCUMENT).is_file():
            return Path(folder)
    except OSError:  # a name that is too long
        return None
    return next(reversed(whole_ones(folder)), None)


def find(folder: str | Path) -> Path:
    """Return `newest`.

    Raises
    ------
    DocumentError
        If there is none.
    """
    found = newest(folder)
    if found is None:
        raise DocumentError(
            f"{folder} is no checkpoint and holds none that is whole (step-00000100 and the like): check the path."
        )
    return found


def draft_name(step: int) -> str:
    """Return a new hidden name for a checkpoint that is being written."""
    return f".step-{step:08d}.{secrets.token_hex(4)}"


def publish(draft: Path, step: int, *, keep: int | None = None) -> Path:
    """Give a draft that is whole its name, and remove others: of the same step, and all but the ``keep`` newest.

    Raises
    ------
    OSError
        If it cannot be renamed; what was whole before still is.
    """
    folder = draft.parent
    _settle(draft)
    same = [path for path in whole_ones(folder) if _step(path) == step]
    number = max((int(m[2] or 0) for path in same if (m := _WHOLE.fullmatch(path.name))), default=-1) + 1
    target = folder / (f"step-{step:08d}" if number == 0 else f"step-{step:08d}-{number}")
    draft.rename(target)
    _settle(folder)
    for path in same:
        _remove(path)
    if keep is not None:
        for path in whole_ones(folder)[:-keep]:
            _remove(path)
    return target


def remove_left_overs(folder: str | Path, *, but: str) -> None:
    """Remove what crashes left half written or half removed, ``but`` for one name."""
    if Path(folder).is_dir():
        for path in Path(folder).iterdir():
            if _HIDDEN.fullmatch(path.name) and path.name != but:
                shutil.rmtree(path, ignore_errors=True)


def _step(path: Path) -> int:
    match = _WHOLE.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _remove(path: Path) -> None:
    """Remove a checkpoint, out of sight before it stops being whole."""
    hidden = path.rename(path.parent / draft_name(_step(path)))
    shutil.rmtree(hidden, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Let names in ``folder`` reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
