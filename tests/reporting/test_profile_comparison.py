"""Two profiles side by side."""

import msgspec
import pytest

from autopipe.errors import InputError
from autopipe.reporting.profile_comparison import profile_comparison
from autopipe.reporting.text import as_text
from tests.profiles import chain_profile, cost, layer, profile


def slower(name: str, times: int):
    one = chain_profile([1000, 2000, 3000])
    layers = tuple(
        msgspec.structs.replace(part, costs=(cost(part.costs[0].forward_ns * times),)) if part.name == name else part
        for part in one.layers
    )
    return msgspec.structs.replace(one, layers=layers)


def test_the_layer_that_changed_comes_first_with_its_ratio():
    lines = as_text(profile_comparison(chain_profile([1000, 2000, 3000]), slower("layer1", 4))).splitlines()
    table = [line for line in lines if line.strip().startswith("layer")]
    (first, *_) = [line for line in table if "layer0" in line or "layer1" in line or "layer2" in line]
    assert first.split()[0] == "layer1"
    assert "4.00" in first
    assert any("36.00 us in B (2.00 of it)" in line for line in lines)


def test_profiles_of_other_sizes_or_models_are_refused():
    with pytest.raises(InputError, match="sizes 1 and the other at 2"):
        profile_comparison(chain_profile([1, 1]), profile([layer("layer0", [cost()])], micro_batches=(2,)))
    with pytest.raises(InputError, match="no layer in common"):
        profile_comparison(chain_profile([1, 1]), profile([layer("other", [cost()])]))


def test_layers_that_one_alone_has_are_named():
    text = as_text(profile_comparison(chain_profile([1, 1, 1]), chain_profile([1, 1])))
    assert "Only A has 1 of its layers, such as layer2." in text
