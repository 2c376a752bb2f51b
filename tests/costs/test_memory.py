"""Memory of intervals, against the prefix rule written out layer by layer."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.costs.memory import holding_bytes, interval_memory
from autopipe.costs.size import at_size
from autopipe.costs.stages import Intervals, edge_costs, stage_costs
from autopipe.costs.time import interval_times
from autopipe.documents.profile import ProfiledValue, SharedParameter
from autopipe.hardware.cluster import Cluster
from autopipe.schedules.moments import rank_moments
from autopipe.schedules.named import make
from tests.peaks import rank_peaks
from tests.profiles import cost, layer, profile, profiles


def memory_of(found):
    sized = at_size(found, 1)
    return interval_memory(sized, interval_times(sized))


def test_a_shared_parameter_is_held_once_by_a_stage_and_once_by_each_of_two():
    layers = [layer(name, [cost()], parameter_bytes=size) for name, size in (("a", 10), ("b", 3), ("c", 10))]
    memory = memory_of(profile(layers, shared=(SharedParameter(name="tied", layers=(0, 2), bytes=10),)))
    assert memory.parameters[0, 3] == 13
    assert memory.state[0, 3] == 4 * 13
    assert memory.state[0, 1] + memory.state[1, 3] == 4 * 23


def test_the_peak_is_where_the_layers_so_far_and_one_transient_are_largest():
    costs = [cost(saved_bytes=5, transient_bytes=100), cost(saved_bytes=50), cost(saved_bytes=7, transient_bytes=2)]
    memory = memory_of(profile([layer(str(index), [one]) for index, one in enumerate(costs)]))
    assert (memory.saved[0, 3], memory.peak[0, 3], memory.peak[1, 3]) == (62, 105, 59)


def test_a_received_value_is_held_until_the_backward_but_an_internal_one_only_if_saved():
    value = ProfiledValue(name="v", producer=0, consumers=(1,), requires_grad=True, bytes=(8,))
    layers = [layer("a", [cost()]), layer("b", [cost()])]
    assert memory_of(profile(layers, [value])).saved[0, 2] == 0
    assert memory_of(profile(layers, [value])).saved[1, 2] == 8
    assert memory_of(profile(layers, [value])).saved[0, 1] == 0


def test_a_value_that_stages_make_again_is_held_by_its_reader_and_by_no_message():
    layers = [layer("a", [cost()]), layer("b", [cost()])]
    found = {}
    for is_rebuilt in (False, True):
        value = ProfiledValue(
            name="mask", producer=0, consumers=(1,), requires_grad=False, bytes=(8,), is_rebuilt=is_rebuilt
        )
        found[is_rebuilt] = memory_of(profile(layers, [value]))
    assert [found[is_rebuilt].saved[1, 2] for is_rebuilt in (False, True)] == [8, 8]
    assert [found[is_rebuilt].far_outputs[0, 1] for is_rebuilt in (False, True)] == [8, 0]


def test_only_the_last_layer_of_a_stage_holds_what_the_stage_received_while_it_climbs():
    costs = [cost(saved_bytes=5, transient_bytes=20, ending_transient_bytes=28) for _ in range(3)]
    memory = memory_of(profile([layer(str(index), [one]) for index, one in enumerate(costs)], crossing_bytes=8))
    received = 8
    assert memory.peak[0, 1] == 5 + 28
    assert memory.peak[1, 2] == received + 5 + 28
    assert memory.peak[0, 2] == 2 * 5 + 28
    # The last stage receives no gradient.
    assert memory.peak[0, 3] == 3 * 5 + 20
    assert memory.peak[2, 3] == received + 5 + 20


@given(profiles())
def test_saved_and_peak_follow_the_prefix_rule(found):
    memory = memory_of(found)
    for begin in range(len(found.layers)):
        for end in range(begin + 1, len(found.layers) + 1):
            assert (memory.saved[begin, end], memory.peak[begin, end]) == by_the_rule(found, begin, end)


def by_the_rule(found, begin, end):
    """Walk through the layers of one stage and add up what lives."""
    received = [v for v in found.values if v.producer < begin and any(begin <= c < end for c in v.consumers)]
    made = [v for v in found.values if begin <= v.producer < end]
    held, peak = sum(v.bytes[0] for v in received), 0
    for layer_index in range(begin, end):
        part = found.layers[layer_index].costs[0]
        held += part.saved_bytes + sum(v.bytes[0] for v in made if v.saved_at == layer_index)
        passing = [v for v in made if v.producer < layer_index < v.consumers[-1]]
        ahead = [v for v in made if v.producer <= layer_index < v.consumers[-1]]
        values = sum(v.bytes[0] for v in ahead if v.saved_at is None or v.saved_at > layer_index)
        late = [v for v in received if any(layer_index < c < end for c in v.consumers)]
        gradients = sum(v.bytes[0] for v in (*passing, *late) if v.requires_grad)
        answered = [v for v in made if v.producer > layer_index and v.consumers[-1] >= end]
        gradients += sum(v.bytes[0] for v in answered if v.requires_grad)
        for shared in found.shared:
            inside = [layer for layer in shared.layers if begin <= layer < end]
            gradients += shared.bytes if inside and inside[0] <= layer_index < inside[-1] else 0
        peak = max(peak, held + part.transient_bytes + gradients, held + part.forward_transient_bytes + values)
    if end == len(found.layers):
        loss = found.loss[0]
        held += loss.saved_bytes
        peak = max(peak, held + max(loss.transient_bytes, loss.forward_transient_bytes))
    return held, peak


@settings(deadline=None, max_examples=60)
@given(data=st.data(), chain=st.booleans(), name=st.sampled_from(["gpipe", "1f1b"]), micro_batches=st.integers(1, 8))
def test_the_table_is_the_peak_of_the_lowered_schedule_and_never_below_it(data, chain, name, micro_batches):
    found = data.draw(profiles(chain=chain))
    count = len(found.layers)
    cuts = data.draw(st.sets(st.integers(1, count - 1), max_size=4)) if count > 1 else set()
    bounds = (0, *sorted(cuts), count)
    stages = len(bounds) - 1
    ranks, cluster, sized = tuple(range(stages)), Cluster.uniform(stages), at_size(found, 1)
    schedule = make(name, stages=stages, micro_batches=micro_batches)
    intervals = Intervals.of(sized)
    exact = rank_peaks(
        schedule, stage_costs(intervals, cluster, bounds, ranks), edge_costs(sized, cluster, bounds, ranks)
    )
    memory, times = intervals.memory, intervals.times
    for stage, moments in enumerate(rank_moments(schedule)):
        needed = [
            (memory.forward_peak if moment.forward else memory.peak)
            + holding_bytes(memory, times, moment.held[0], stage=stage, stages=stages, micro_batches=micro_batches)
            for moment in moments
        ]
        table = memory.state + np.maximum.reduce(needed)
        found_bytes = table[bounds[stage], bounds[stage + 1]]
        assert found_bytes == exact[stage] if chain else found_bytes >= exact[stage]
