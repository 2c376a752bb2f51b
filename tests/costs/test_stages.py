"""The stages of one split and the edges between them."""

from autopipe.costs.size import at_size
from autopipe.costs.stages import Intervals, edge_costs, stage_costs
from autopipe.documents.profile import ProfiledValue, SharedParameter
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.schedules.comms import Edge
from autopipe.schedules.named import make
from tests.peaks import rank_peaks
from tests.profiles import chain_profile, cost, layer, profile


def test_a_device_of_twice_the_speed_takes_half_the_time():
    cluster = Cluster(devices=(Device(), Device(speed=2.0)))
    stages = stage_costs(Intervals.of(at_size(chain_profile([10, 10]), 1)), cluster, (0, 1, 2), (0, 1))
    assert [stage.forward_ns for stage in stages] == [10, 5]
    assert [stage.backward_ns for stage in stages] == [20, 10]


def test_an_edge_carries_every_value_that_its_reader_needs_over_the_link_between_their_ranks():
    values = [
        ProfiledValue(name="hidden", producer=0, consumers=(1, 2), requires_grad=True, bytes=(8,)),
        ProfiledValue(name="mask", producer=0, consumers=(2,), requires_grad=False, bytes=(3,)),
        ProfiledValue(name="causal", producer=0, consumers=(2,), requires_grad=False, bytes=(99,), is_rebuilt=True),
        ProfiledValue(name="next", producer=1, consumers=(2,), requires_grad=True, bytes=(5,)),
    ]
    found = profile([layer(name, [cost()]) for name in "abc"], values)
    fast, slow = Link(latency_ns=1), Link(latency_ns=9)
    cluster = Cluster.uniform(3, gpus_per_node=2, intra_node=fast, inter_node=slow)
    edges = edge_costs(at_size(found, 1), cluster, (0, 1, 2, 3), (0, 1, 2))
    assert [(e.edge, e.forward_bytes, e.backward_bytes, e.link) for e in edges] == [
        (Edge(0, 1), 8, 8, fast),
        (Edge(0, 2), 11, 8, slow),
        (Edge(1, 2), 5, 5, slow),
    ]


def test_tied_layers_on_one_rank_cost_no_synchronisation():
    shared = (SharedParameter(name="tied", layers=(0, 2), bytes=1000),)
    found = profile([layer(name, [cost()], parameter_bytes=1000) for name in "abc"], shared=shared)
    cluster = Cluster.uniform(2, intra_node=Link(latency_ns=5, bytes_per_s=10**9))
    intervals = Intervals.of(at_size(found, 1))
    apart = stage_costs(intervals, cluster, (0, 1, 3), (0, 1))
    together = stage_costs(intervals, cluster, (0, 1, 3), (0, 0))
    assert [stage.tied_ns for stage in apart] == [1010, 1010]
    assert [stage.tied_ns for stage in together] == [0, 0]


def test_gpipe_holds_every_micro_batch_and_1f1b_does_not():
    layers = [layer("a", [cost(saved_bytes=100)]), layer("b", [cost(saved_bytes=100)])]
    found = at_size(profile(layers), 1)
    cluster = Cluster.uniform(2)
    stages = stage_costs(Intervals.of(found), cluster, (0, 1, 2), (0, 1))
    edges = edge_costs(found, cluster, (0, 1, 2), (0, 1))
    assert rank_peaks(make("gpipe", stages=2, micro_batches=8), stages, edges) == (800, 800)
    assert rank_peaks(make("1f1b", stages=2, micro_batches=8), stages, edges) == (200, 100)
