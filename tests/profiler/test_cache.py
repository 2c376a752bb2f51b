"""The same question is measured once, and an interrupt loses nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopipe.documents.profile import Profile
from autopipe.profiler import measure
from autopipe.profiler.cache import ProfileCache


class Counting(nn.Module):
    """Counts its runs."""

    runs = 0

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        Counting.runs += 1
        return self.body(x)


def profile(cache: ProfileCache, **options: Any) -> Profile:
    torch.manual_seed(0)
    options = {"micro_batches": (2, 4), "budget_s": 0.0, **options}
    return measure(Counting(), torch.randn(4, 8), cache=cache, **options)


def test_the_same_question_is_answered_without_timing_anything(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    first = profile(cache)
    assert not cache.answered
    told: list[str] = []
    assert profile(cache, progress=lambda what, _: told.append(what)) == first
    assert cache.answered
    assert told == []


@pytest.mark.parametrize("options", [{"micro_batches": (2,)}, {"optimizer": "sgd"}, {"loss_fn": torch.sum}])
def test_another_question_is_measured(tmp_path: Path, options: dict[str, Any]) -> None:
    cache = ProfileCache(tmp_path)
    profile(cache)
    profile(cache, **options)
    assert not cache.answered


def test_a_model_under_autocast_is_another_question(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    assert profile(cache).autocast is None
    with torch.autocast("cpu", torch.bfloat16):
        assert profile(cache).autocast == "bfloat16"


def test_a_damaged_file_is_measured_anew(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    profile(cache)
    (path,) = tmp_path.glob("*.profile.json")
    path.write_text(path.read_text()[:100])
    profile(cache)
    assert not cache.answered


def interrupt_after(rounds: int) -> Any:
    seen = 0

    def progress(what: str, _: float) -> None:
        nonlocal seen
        seen += what == "measuring time"
        if seen == rounds:
            raise KeyboardInterrupt

    return progress


def test_what_was_measured_before_an_interrupt_is_gone_on_with(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        profile(cache, budget_s=60.0, progress=interrupt_after(3))
    assert list(tmp_path.glob("*.profile.json")) == []
    told: list[str] = []
    found = profile(cache, progress=lambda what, _: told.append(what))
    spread = found.layers[0].costs[0].forward_spread
    assert spread is not None
    assert spread.rounds == 3 + 1
    assert list(tmp_path.glob("*.notes.json")) == []


def test_an_interrupt_while_memory_is_measured_keeps_the_sizes_that_were(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)

    def stop_at_second(what: str, share: float) -> None:
        if what == "measuring memory" and share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(cache, progress=stop_at_second)
    (notes,) = tmp_path.glob("*.notes.json")
    assert '"footprints":{"4":' in notes.read_text()
    assert profile(cache).micro_batches == (2, 4)
