import pytest
import torch
from torch import nn

from autopipe.errors import ProfileError
from autopipe.profiler.device import device_memory, device_name, device_of


def test_a_model_and_its_example_are_on_one_device() -> None:
    assert device_of(nn.Linear(2, 2), (torch.zeros(1, 2),)) == torch.device("cpu")


def test_a_model_without_tensors_is_on_the_cpu() -> None:
    assert device_of(nn.Identity(), ()) == torch.device("cpu")


def test_a_model_on_another_device_than_its_example_is_refused() -> None:
    with pytest.raises(ProfileError, match="cpu, meta"):
        device_of(nn.Linear(2, 2), (torch.zeros(1, 2, device="meta"),))


def test_nothing_can_be_timed_on_the_meta_device() -> None:
    with pytest.raises(ProfileError, match="meta device"):
        device_of(nn.Linear(2, 2, device="meta"), (torch.zeros(1, 2, device="meta"),))


def test_a_processor_has_a_name_and_threads_and_no_memory_of_its_own() -> None:
    assert device_name(torch.device("cpu")).endswith(("1 thread", "threads"))
    assert device_memory(torch.device("cpu")) is None
