"""Only what is whole has a name that counts, at every moment of a save."""

import contextlib
import os
from pathlib import Path

import pytest

from autopipe.checkpoints import folder as folders
from autopipe.errors import DocumentError


def draft(root: Path, step: int) -> Path:
    path = root / folders.draft_name(step)
    path.mkdir(parents=True)
    (path / folders.DOCUMENT).write_text("{}")
    return path


def test_drafts_are_not_found_and_published_ones_are_by_step(tmp_path: Path) -> None:
    for step in (100, 20, 123456789):
        folders.publish(draft(tmp_path, step), step)
    draft(tmp_path, 10**9)
    (tmp_path / "step-00000300.txt").touch()
    names = [path.name for path in folders.whole_ones(tmp_path)]
    assert names == ["step-00000020", "step-00000100", "step-123456789"]
    assert folders.newest(tmp_path) == tmp_path / "step-123456789"
    assert folders.find(tmp_path / "step-00000020") == tmp_path / "step-00000020"


def test_a_second_save_of_a_step_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for content in "abc":
        path = draft(tmp_path, 7)
        (path / "content").write_text(content)
        folders.publish(path, 7)
    assert [path.name for path in folders.whole_ones(tmp_path)] == ["step-00000007-2"]
    assert (folders.find(tmp_path) / "content").read_text() == "c"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in range(6):
        folders.publish(draft(tmp_path, step), step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_left_overs_go_and_a_draft_in_hand_stays(tmp_path: Path) -> None:
    mine, other = draft(tmp_path, 1), draft(tmp_path, 2)
    folders.remove_left_overs(tmp_path, but=mine.name)
    assert mine.exists()
    assert not other.exists()


@pytest.mark.parametrize("moment", range(8))
def test_whatever_the_moment_of_a_crash_a_whole_checkpoint_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    # Every call that changes the file system may be the last one: the second save of a step, which keeps one.
    folders.publish(draft(tmp_path, 3), 3)
    new = draft(tmp_path, 3)
    calls = 0

    def crashing(original):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > moment:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        return call

    for owner, name in ((os, "rename"), (os, "unlink"), (os, "rmdir"), (os, "fsync"), (Path, "rename")):
        monkeypatch.setattr(owner, name, crashing(getattr(owner, name)))
    with contextlib.suppress(KeyboardInterrupt):
        folders.publish(new, 3, keep=1)
    monkeypatch.undo()
    found = folders.find(tmp_path)
    assert (found / folders.DOCUMENT).exists()


def test_a_folder_without_a_whole_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    draft(tmp_path, 1)
    for path in (tmp_path, tmp_path / "nowhere"):
        assert folders.newest(path) is None
        with pytest.raises(DocumentError, match="holds none that is whole"):
            folders.find(path)
