"""Profiles that cannot be used."""

import msgspec
import pytest
from hypothesis import given

from autopipe.costs.validity import check_profile
from autopipe.documents.profile import ProfiledValue, SharedParameter
from autopipe.errors import DocumentError
from tests.profiles import chain_profile, cost, layer, profile, profiles

VALUE = {"name": "v", "producer": 0, "consumers": (1,), "requires_grad": True, "bytes": (4,)}


def with_value(**fields: object):
    return profile([layer(name, [cost()]) for name in "ab"], [ProfiledValue(**{**VALUE, **fields})])


@pytest.mark.parametrize(
    ("found", "path"),
    [
        (profile([]), "layers is empty"),
        (msgspec.structs.replace(chain_profile([1]), micro_batches=(2, 1)), "micro_batches"),
        (chain_profile([-1]), r"layers\[0\] \(layer0\)\.costs\[0\]\.forward_ns is -1"),
        (chain_profile([1 << 60]), "forward_ns"),
        (chain_profile([1], buffer_bytes=-5), "buffer_bytes is -5"),
        (profile([layer("a", [])]), "costs has 0 entries"),
        (profile([layer("a", [cost()])], loss=[cost(), cost()]), "loss has 2 entries"),
        (with_value(consumers=(0,)), r"values\[0\] \(v\)\.consumers"),
        (with_value(producer=5), "producer"),
        (with_value(consumers=(1, 1)), "ascending"),
        (with_value(saved_at=0), "saved_at is 0"),
        (with_value(bytes=()), "bytes has 0 entries"),
        (profile([layer("a", [cost()])], shared=(SharedParameter(name="t", layers=(0, 3), bytes=1),)), "shared"),
        (profile([layer("a", [cost()])], link_bytes_per_s=0), "link_bytes_per_s is 0"),
    ],
)
def test_a_fault_is_named_by_its_path(found, path):
    with pytest.raises(DocumentError, match=path):
        check_profile(found)


@given(profiles())
def test_a_sound_profile_passes(found):
    check_profile(found)


def test_two_layers_of_one_name_are_refused():
    with pytest.raises(DocumentError, match=r"layers\[1\] \(a\)\.name is also that of layers\[0\]"):
        check_profile(profile([layer("a", [cost()]), layer("a", [cost()])]))
