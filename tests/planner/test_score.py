"""Plans written down, and simulated from what is written."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.documents.files import decode, encode
from autopipe.documents.plan import EdgePlan, Plan
from autopipe.documents.profile import ProfiledValue
from autopipe.errors import DocumentError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import simulate_plan
from autopipe.simulator.metrics import busy_ns
from tests.planner.instances import plan
from tests.profiles import cost, layer, profile, profiles


@settings(deadline=None, max_examples=40)
@given(data=st.data(), schedule=st.sampled_from(["1f1b", "gpipe"]))
def test_a_plan_read_from_its_file_gives_the_step_and_the_memory_that_it_predicts(data, schedule):
    found = data.draw(profiles())
    stages = data.draw(st.integers(1, min(4, len(found.layers))))
    cluster = Cluster.uniform(stages, intra_node=Link(latency_ns=3, bytes_per_s=10**9))
    made = plan(found, cluster, batch_size=data.draw(st.integers(1, 6)), schedule=schedule)
    timeline = simulate_plan(decode(encode(made), Plan))
    assert timeline.step_ns == made.step_ns
    for rank, predicted in zip(timeline.ranks, made.ranks, strict=True):
        assert (rank.peak_bytes, rank.peak_in_flight) == (predicted.peak_bytes, predicted.in_flight)
        assert busy_ns(rank) == predicted.busy_ns


def test_a_plan_says_what_travels_between_its_stages():
    values = [
        ProfiledValue(name="hidden", producer=0, consumers=(1, 2), requires_grad=True, bytes=(8,)),
        ProfiledValue(name="next", producer=1, consumers=(2,), requires_grad=False, bytes=(5,)),
    ]
    found = profile([layer(name, [cost()]) for name in "abc"], values)
    made = plan(found, Cluster.uniform(3, intra_node=Link(latency_ns=9)), batch_size=2)
    assert made.edges == (
        EdgePlan(source=0, target=1, gradient=True, forward_bytes=8, backward_bytes=8, unsaved_bytes=8, latency_ns=9),
        EdgePlan(source=0, target=2, gradient=True, forward_bytes=8, backward_bytes=8, unsaved_bytes=8, latency_ns=9),
        EdgePlan(source=1, target=2, gradient=False, forward_bytes=5, backward_bytes=0, unsaved_bytes=5, latency_ns=9),
    )
    assert [stage.send_bytes for stage in made.stages] == [16, 5, 0]


def test_an_edge_that_leads_backward_is_refused():
    made = plan(profile([layer(name, [cost()]) for name in "ab"]), Cluster.uniform(2), batch_size=2)
    broken = msgspec.structs.replace(made.edges[0], source=1, target=0)
    with pytest.raises(DocumentError, match=r"edges\[0\]"):
        simulate_plan(msgspec.structs.replace(made, edges=(broken,)))
