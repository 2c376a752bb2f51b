"""Sizes double until memory, time or patience runs out."""

import pytest
import torch
from torch import Tensor, nn

from autopipe.profiler import measure
from autopipe.profiler.fitting import Trial, fitting_sizes


def until(largest: int, *, step_ns: int = 1000, peak_bytes: int = 1) -> object:
    def attempt(size: int) -> Trial:
        if size > largest:
            raise torch.OutOfMemoryError("no more")
        return Trial(step_ns, peak_bytes * size)

    return attempt


def test_memory_ends_it() -> None:
    assert fitting_sizes(until(8), room_bytes=None) == (1, 2, 4, 8)


def test_of_many_sizes_the_largest_are_taken() -> None:
    assert fitting_sizes(until(1 << 9), room_bytes=None) == (16, 32, 64, 128, 256, 512)


def test_no_size_is_tried_that_twice_the_peak_says_will_not_fit() -> None:
    assert fitting_sizes(until(1 << 9, peak_bytes=10), room_bytes=100) == (1, 2, 4, 8)


def test_sizes_that_save_no_time_are_not_worth_it() -> None:
    assert fitting_sizes(lambda size: Trial(1000 * size, 1), room_bytes=None) == (1, 2, 4)


def test_a_long_step_ends_it() -> None:
    assert fitting_sizes(until(1 << 9, step_ns=5 * 10**9), room_bytes=None) == (1,)


def test_memory_that_does_not_suffice_for_one_sample_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        fitting_sizes(until(0), room_bytes=None)


class Hungry(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 4:
            raise torch.OutOfMemoryError("no more")
        return super().forward(x)


def test_a_profile_chooses_sizes_that_the_model_fits_in() -> None:
    model = nn.Sequential(nn.Linear(6, 6), Hungry(6, 6))
    profile = measure(model, (torch.randn(2, 6),), micro_batches="auto", budget_s=0)
    assert profile.micro_batches == (1, 2, 4)
