"""A plan says what idles and what one thing more would change, in figures that can be checked."""

import re

from autopipe.costs.recompute import can_recompute
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import Request, evaluate
from autopipe.planner import plan as make_plan
from autopipe.planner.explain import idle_sentence
from tests.planner.instances import plan
from tests.profiles import chain_profile, cost, layer, profile


def test_idle_time_is_divided_between_imbalance_and_bubble():
    """Ranks of 60, 80 and 40 in a step of 100: 120 of 300 idle, 60 of it for lack of work, 60 with the busiest."""
    sentence = idle_sentence((60, 80, 40), 100)
    assert sentence is not None
    assert sentence.startswith("40.0 % of all ranks' time idles: 50.0 % of that is imbalance")
    assert "50.0 % the bubble" in sentence


def test_what_never_idles_needs_no_sentence():
    assert idle_sentence((100, 100), 100) is None
    assert idle_sentence((7,), 9) is None


def test_equal_stages_idle_in_the_bubble_alone():
    found = plan(chain_profile([10] * 4), Cluster.uniform(4), batch_size=8, schedule="1f1b", micro_batch_size=1)
    assert "0.0 % of that is imbalance" in found.binding
    assert "27.3 % of all ranks' time idles" in found.binding  # 3 of 11 rounds


def test_a_boundarys_alternative_is_the_best_of_its_other_places():
    """The layers beside the boundary take nothing, so that moving it by one changes nothing either."""
    layers = [layer(f"l{i}", [cost(time)]) for i, time in enumerate((10, 10, 10, 0, 10, 10, 10))]
    found_profile, cluster = profile(layers), Cluster.uniform(2)
    found = plan(found_profile, cluster, batch_size=8, schedule="1f1b", micro_batch_size=1)
    (sentence,) = [one for one in found.explanation if one.startswith("Boundary 1")]
    own = found.stages[1].begin
    asked = {"batch_size": 8, "micro_batch_size": 1, "depth": found.depth}
    places = [place for place in range(1, 7) if place != own]
    others = {place: evaluate(found_profile, cluster, (0, place, 7), **asked).step_ns for place in places}
    place = int(re.search(r"before l(\d) instead", sentence)[1])
    assert others[place] == min(others.values())


def test_places_that_do_not_fit_are_no_alternative():
    layers = [layer(name, [cost(10)], parameter_bytes=100) for name in "ab"] + [layer("c", [cost(1)], 100)]
    found = plan(profile(layers), Cluster.uniform(2, memory_bytes=900), batch_size=2, schedule="1f1b")
    tight = plan(profile(layers[:2]), Cluster.uniform(2, memory_bytes=500), batch_size=2, schedule="1f1b")
    assert any("before" in one and "instead" in one for one in found.explanation)
    assert "no other place is legal and fits" in " ".join(tight.explanation)


def test_one_more_device_is_laid_out_anew():
    found_profile = chain_profile([10] * 12, crossing_bytes=1)
    longer = plan(found_profile, Cluster.uniform(2), batch_size=12)
    wider = make_plan(found_profile, Cluster.uniform(8), Request(batch_size=18 * 8, virtual=1))
    assert any(one.startswith("One more device, 3 ranks: ") for one in longer.explanation)
    assert any(one.startswith("One more device, 1 rank in 9 replicas: ") for one in wider.explanation)


def test_every_change_is_spoken_of():
    able = cost(10, saved_bytes=10, recompute_ns=2, saved_recompute_bytes=0)
    assert can_recompute(able)
    found_profile = profile([layer(f"l{i}", [able]) for i in range(6)], crossing_bytes=5)
    cluster = Cluster.uniform(2, memory_bytes=10_000, intra_node=Link(latency_ns=9, bytes_per_s=10**9))
    found = plan(found_profile, cluster, batch_size=8)
    said = " ".join(found.explanation)
    for words in ("One GiB more", "One more device", "Twice the micro-batches", "Links of twice", "Recompute of all"):
        assert words in said


def test_boundaries_between_single_layers_are_named_together():
    found = plan(chain_profile([10] * 4), Cluster.uniform(4), batch_size=8, schedule="1f1b")
    assert "Boundaries 1, 2, 3: no other place is legal and fits." in found.explanation


def test_where_stages_share_memory_a_split_that_fits_is_found_for_each_change():
    able = cost(100, saved_bytes=1000, recompute_ns=30, saved_recompute_bytes=1)
    found_profile = profile([layer(f"l{i}", [able], parameter_bytes=500) for i in range(8)], crossing_bytes=1)
    cluster = Cluster.uniform(2, memory_bytes=14_000)
    asked = Request(batch_size=16, replicas=1, schedule="interleaved", virtual=4)
    found = make_plan(found_profile, cluster, asked)
    assert any(stage.recompute for stage in found.stages)
    doubled = next(one for one in found.explanation if one.startswith("Twice the micro-batches"))
    assert "nothing" not in doubled
