"""A checkpoint that is damaged, or is something else, is a sentence."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autopipe.checkpoints.folder import DOCUMENT
from autopipe.checkpoints.saved import TRAINING, Saved
from autopipe.checkpoints.tensors import INDEX
from autopipe.errors import DocumentError
from tests.executor.pipes import thread_pipe
from tests.models import JOBS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, _ = JOBS["mlp"].draw(4)
    pipe = thread_pipe(JOBS["mlp"].build(), (x,), stages=2, micro_batches=2, loss_fn=JOBS["mlp"].loss)
    folder = pipe.save(tmp_path_factory.mktemp("saved")).wait()
    pipe.close()
    return folder


def claim_more(folder: Path) -> None:
    index = pickle.loads((folder / INDEX).read_bytes())
    next(iter(index.state_dict_metadata.values())).size = torch.Size([10**9, 10**6])
    (folder / INDEX).write_bytes(pickle.dumps(index))


def hold_something_else(folder: Path) -> None:
    torch.save({"groups": 5}, folder / TRAINING)


DAMAGES = {
    "no index": lambda folder: (folder / INDEX).unlink(),
    "no training state": lambda folder: (folder / TRAINING).unlink(),
    "no document": lambda folder: (folder / DOCUMENT).write_text("{}"),
    "tensors cut short": lambda folder: next(folder.glob("*.distcp")).write_bytes(b"PK"),
    "an index that claims more than there is": claim_more,
    "another file": hold_something_else,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_before_memory_is_taken(written: Path, tmp_path: Path, name: str) -> None:
    damage: Callable[[Path], object] = DAMAGES[name]
    folder = Path(shutil.copytree(written, tmp_path / "copy"))
    assert len(Saved(folder).whole().model) == 12
    damage(folder)
    with pytest.raises(DocumentError):
        Saved(folder).whole()
