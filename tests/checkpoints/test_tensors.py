"""An index from elsewhere is data: it makes no objects but its own, and names no files but those beside it."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from autopipe.checkpoints import tensors
from autopipe.errors import DocumentError


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "a": torch.randn(3, 4).t(),
        "b": torch.tensor(7),
        "c": torch.randn(5).to(torch.bfloat16),
        "d": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "e": torch.zeros(0),
        "f": torch.ones(4, dtype=torch.complex64),
    }
    tensors.write(state, tmp_path, None)
    targets = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    tensors.read(targets, tmp_path)
    assert all(torch.equal(targets[name], tensor) for name, tensor in state.items())
    assert {name: tuple(entry.size) for name, entry in tensors.read_index(tmp_path).items()}["a"] == (4, 3)


def test_an_index_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / tensors.INDEX).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DocumentError, match=r"refers to .*mkdir"):
        tensors.read_index(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_an_index_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    tensors.write({"a": torch.ones(2)}, tmp_path, None)
    path = tmp_path / tensors.INDEX
    index = pickle.loads(path.read_bytes())
    for info in index.storage_data.values():
        info.relative_path = "../" + info.relative_path
    path.write_bytes(pickle.dumps(index))
    with pytest.raises(DocumentError, match="names files elsewhere"):
        tensors.read_index(tmp_path)


def test_damaged_files_are_a_sentence(tmp_path: Path) -> None:
    tensors.write({"a": torch.randn(100)}, tmp_path, None)
    data = next(tmp_path.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:200])
    with pytest.raises(DocumentError, match=r"Load an older checkpoint"):
        tensors.read({"a": torch.empty(100)}, tmp_path)
    (tmp_path / tensors.INDEX).write_bytes(b"\x80\x04")
    with pytest.raises(DocumentError, match="not the index"):
        tensors.read_index(tmp_path)
