"""Times and crossing bytes of intervals, against sums over layers and values."""

from hypothesis import given

from autopipe.costs.size import at_size
from autopipe.costs.time import all_reduce_ns, interval_times
from autopipe.documents.profile import ProfiledValue
from autopipe.hardware.cluster import Link
from tests.profiles import chain_profile, cost, layer, profile, profiles


def test_the_loss_belongs_to_the_last_interval():
    times = interval_times(at_size(profile([layer("a", [cost(3)]), layer("b", [cost(5)])], loss=[cost(7)]), 1))
    assert (times.forward_ns[0, 1], times.forward_ns[1, 2], times.forward_ns[0, 2]) == (3, 12, 15)


def test_a_value_read_twice_in_one_interval_enters_once():
    values = [ProfiledValue(name="v", producer=0, consumers=(1, 2), requires_grad=False, bytes=(8,))]
    times = interval_times(at_size(profile([layer(n, [cost()]) for n in "abc"], values), 1))
    assert (times.input_bytes[1, 3], times.input_bytes[1, 2], times.input_bytes[2, 3]) == (8, 8, 8)
    assert times.input_gradient_bytes.max() == 0


def test_an_all_reduce_over_two_ranks_sends_half_twice():
    assert all_reduce_ns(1000, 2, Link(latency_ns=5, bytes_per_s=10**9)) == 2 * (5 + 500)
    assert all_reduce_ns(1000, 1, Link(latency_ns=5, bytes_per_s=10**9)) == 0


def test_a_thousand_layers_take_no_time_to_speak_of():
    times = interval_times(at_size(chain_profile([1] * 1154), 1))
    assert times.forward_ns[100, 1154] == 1054


@given(profiles())
def test_every_interval_is_the_sum_of_its_parts(found):
    times = interval_times(at_size(found, 1))
    count = len(found.layers)
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            inside = range(begin, end)
            parts = [found.layers[index].costs[0] for index in inside] + [found.loss[0]] * (end == count)
            entering = [v for v in found.values if v.producer < begin and any(c in inside for c in v.consumers)]
            leaving = [v for v in found.values if v.producer in inside and v.consumers[-1] >= end]
            assert times.forward_ns[begin, end] == sum(part.forward_ns for part in parts)
            assert times.backward_ns[begin, end] == sum(part.backward_ns for part in parts)
            assert times.input_bytes[begin, end] == sum(v.bytes[0] for v in entering)
            assert times.output_bytes[begin, end] == sum(v.bytes[0] for v in leaving)
            assert times.input_gradient_bytes[begin, end] == sum(v.bytes[0] for v in entering if v.requires_grad)


def test_a_backward_is_two_parts_where_a_gradient_is_sent_and_one_where_none_is():
    layers = [layer(n, [cost(10, 20, input_grad_ns=i, weight_grad_ns=w)]) for n, i, w in (("a", 8, 13), ("b", 9, 12))]
    times = interval_times(at_size(profile(layers, loss=[cost(1, 2)]), 1))
    assert times.input_grad_ns is not None
    assert times.weight_grad_ns is not None
    assert (times.input_grad_ns[1, 2], times.weight_grad_ns[1, 2]) == (9 + 2, 12)
    assert (times.input_grad_ns[0, 2], times.weight_grad_ns[0, 2]) == (0, 42)


def test_parts_of_which_one_was_not_measured_are_not_known():
    layers = [layer("a", [cost(input_grad_ns=8, weight_grad_ns=13)]), layer("b", [cost()])]
    times = interval_times(at_size(profile(layers), 1))
    assert times.input_grad_ns is None
    assert times.weight_grad_ns is None
