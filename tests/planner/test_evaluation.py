"""Splits that somebody gives."""

import pytest

from autopipe.errors import InputError
from autopipe.hardware.cluster import Cluster
from autopipe.planner import evaluate
from tests.profiles import chain_profile, cost, layer, profile


def test_a_bad_split_is_scored_with_its_gap():
    made = evaluate(chain_profile([10, 10, 10, 10]), Cluster.uniform(2), (0, 1, 4), batch_size=8, micro_batch_size=1)
    assert made.step_ns == 30 + 8 * 90
    assert made.certificate.step_bound_ns == 9 * 60
    assert made.certificate.gap == pytest.approx(750 / 540 - 1)
    assert (made.certificate.status, made.certificate.engine) == ("heuristic", "given")


def test_a_split_that_does_not_fit_is_scored_and_said_not_to():
    layers = [layer(name, [cost()], parameter_bytes=100) for name in "abc"]
    cluster = Cluster.uniform(2, memory_bytes=500)
    made = evaluate(profile(layers), cluster, (0, 2, 3), batch_size=2, micro_batch_size=1)
    assert made.binding.startswith("Rank 0 needs 800 B and has 500 B")


@pytest.mark.parametrize("bounds", [(), (0,), (0, 2), (0, 2, 2, 3), (1, 3), (0, 3, 2, 3), (0, 4)])
def test_bounds_that_cut_nothing_are_refused(bounds):
    with pytest.raises(InputError, match="do not cut 3 layers"):
        evaluate(chain_profile([1, 1, 1]), Cluster.uniform(3), bounds, batch_size=2, micro_batch_size=1)


def test_an_illegal_cut_is_refused_by_the_layer_behind_it():
    found = profile([layer(name, [cost()]) for name in "abc"], forbidden_cuts=(1,))
    with pytest.raises(InputError, match=r"layer 1 \(b\)"):
        evaluate(found, Cluster.uniform(2), (0, 1, 3), batch_size=2, micro_batch_size=1)


def test_more_stages_than_devices_are_refused():
    with pytest.raises(InputError, match="3 stages cannot be put on 2 devices"):
        evaluate(chain_profile([1, 1, 1]), Cluster.uniform(2), (0, 1, 2, 3), batch_size=2, micro_batch_size=1)
