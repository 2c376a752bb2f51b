"""The weights of a model in a file, of which each rank reads only what its stages need."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from autopipe.errors import DocumentError

Read = Callable[[str], Tensor]


def open_weights(path: str | Path) -> tuple[frozenset[str], Read]:
    """Return the names in a checkpoint, and a function that reads one tensor, on the CPU.

    Parameters
    ----------
    path : path
        A ``.safetensors`` file, the ``.index.json`` of several, a folder that holds either, or what
        ``torch.save(model.state_dict(), path)`` wrote, which is mapped into memory and not read whole.

    Raises
    ------
    DocumentError
        If there is no such file, or it holds something else.
    """
    path = Path(path)
    if path.is_dir():
        candidates = (*sorted(path.glob("*.index.json")), *sorted(path.glob("*.safetensors")))
        if not candidates:
            raise DocumentError(f"{path} holds no .safetensors file: pass the file with the weights itself.")
        path = candidates[0]
    if not path.exists():
        raise DocumentError(f"there is no file {path}: pass the path of a checkpoint.")
    if path.name.endswith(".index.json"):
        homes = {name: path.parent / file for name, file in json.loads(path.read_text())["weight_map"].items()}
        return frozenset(homes), lambda name: _safetensor(homes[name], name)
    if path.suffix == ".safetensors":
        return frozenset(_safetensor_names(path)), lambda name: _safetensor(path, name)
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DocumentError(f"{path} holds a {type(state).__name__} and not names with tensors: save a state_dict.")
    return frozenset(state), state.__getitem__


def _safetensor_names(path: Path) -> Iterable[str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return tuple(file.keys())


def _safetensor(path: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)
