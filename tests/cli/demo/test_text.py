"""The demo's data: real text, the same batch for the same step."""

from pathlib import Path

import pytest
import torch

from autopipe.cli.demo.text import draw_batch, read_text
from autopipe.errors import InputError


def test_the_standard_library_is_at_hand() -> None:
    text = read_text(largest=1000)
    assert (text.shape, text.dtype) == ((1000,), torch.uint8)


def test_files_follow_each_other_by_name_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("second")
    (tmp_path / "a.py").write_text("first ")
    (tmp_path / "c.txt").write_text("never")
    assert bytes(read_text(tmp_path).tolist()) == b"first second"
    assert bytes(read_text(tmp_path, largest=8).tolist()) == b"first se"


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no Python source"):
        read_text(tmp_path)


def test_targets_are_the_inputs_one_byte_later() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    batch = draw_batch(text, step=3, batch=5, time=16)
    assert torch.equal(batch.inputs + 1, batch.target)
    assert batch.inputs.shape == (5, 16)


def test_a_step_draws_the_same_batch_every_time_and_another_step_another() -> None:
    text = read_text(largest=5000)
    first, again, other = (draw_batch(text, step=step, batch=4, time=8).inputs for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
