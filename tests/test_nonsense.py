"""Public functions that are given nonsense answer with an error of the package, whatever the argument."""

import contextlib
import inspect
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import autopipe
from autopipe.documents.profile import Profile
from autopipe.errors import AutopipeError
from autopipe.hardware.cluster import Cluster, Device, Link
from tests.profiles import cost, layer, profile

NONSENSE = st.one_of(
    st.sampled_from([None, True, 10**30, 2**63, -1, 0, b"x", object(), torch.zeros(2), int, len, "\ud800", "a\0b"]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers() | st.text(max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)
MODEL = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
EXAMPLE = (torch.zeros(2, 4),)


def small_profile() -> Profile:
    return profile([layer(f"layer{i}", [cost(1000)]) for i in range(4)], micro_batches=(1, 2))


def partitioned(**given: Any) -> Any:
    return autopipe.partition(
        given.pop("profile", small_profile()), **{"gpus": 2, "batch_size": 8, "time_limit_s": 0.3, **given}
    )


def clustered(**given: Any) -> Any:
    link = Link(**{name: given.pop(name) for name in ("latency_ns", "bytes_per_s") if name in given})
    return partitioned(gpus=None, cluster=Cluster(devices=(Device(**given), Device()), intra_node=link))


def parameters(function: Any, *without: str) -> list[str]:
    return sorted(set(inspect.signature(function).parameters) - set(without))


CALLS = {
    "partition": (partitioned, parameters(autopipe.partition)),
    "cluster": (clustered, [*parameters(Device), "latency_ns", "bytes_per_s"]),
    "capture": (
        lambda **given: autopipe.capture(given.pop("model", MODEL), EXAMPLE, **given),
        # What the model raises when it runs on an example that it cannot take is its own.
        parameters(autopipe.capture, "example", "leaf", "batch_dims"),
    ),
    "split": (lambda **given: autopipe.split(**{"model": MODEL, "plan": "no-such-file", **given}), ["model", "plan"]),
    "pipeline": (
        lambda **given: autopipe.pipeline(**{"model": MODEL, "plan": "no-such-file", "ranks": 2, **given}),
        parameters(autopipe.pipeline, "initialise", "leaf", "batch_dims"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nonsense_is_refused_or_used(name: str, data: st.DataObject) -> None:
    call, names = CALLS[name]
    argument = data.draw(st.sampled_from(names))
    value = data.draw(NONSENSE)
    with contextlib.suppress(AutopipeError):
        call(**{argument: value})
