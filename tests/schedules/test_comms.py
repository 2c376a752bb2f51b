"""Sends, receives and waits derived from a schedule."""

from hypothesis import given
from hypothesis import strategies as st

from autopipe.schedules.action import parse_schedule
from autopipe.schedules.comms import Edge, Kind, chain, lower
from autopipe.schedules.named import make


def words(text: str, rank: int, **options: int) -> list[str]:
    schedule = parse_schedule(text)
    return [str(step) for step in lower(schedule, chain(schedule.stages), **options)[rank]]


def test_two_ranks_in_full():
    text = "F0.0 B0.0\nF1.0 B1.0"
    assert words(text, 0) == ["post g1>0.0", "F0.0", "send a0>1.0", "await g1>0.0", "sent a0>1.0", "B0.0"]
    assert words(text, 1) == ["post a0>1.0", "await a0>1.0", "F1.0", "B1.0", "send g1>0.0", "sent g1>0.0"]


def test_without_lookahead_a_receive_is_posted_right_before_its_action():
    text = "F0.0 F0.1 B0.0 B0.1\nF1.0 F1.1 B1.0 B1.1"
    steps = words(text, 1, lookahead=0)
    assert steps[steps.index("post a0>1.1") + 1] == "await a0>1.1"


def test_the_fourth_send_waits_for_the_first():
    text = "F0.0 F0.1 F0.2 F0.3\nF1.0 F1.1 F1.2 F1.3"
    steps = words(text, 0)
    assert steps.index("send a0>1.2") < steps.index("sent a0>1.0") < steps.index("F0.3")


def test_stages_of_one_rank_send_nothing_to_each_other():
    assert words("F0.0 F1.0 B1.0 B0.0", 0) == ["F0.0", "F1.0", "B1.0", "B0.0"]


def test_an_edge_without_gradient_sends_nothing_back():
    schedule = parse_schedule("F0.0 B0.0\nF1.0 B1.0")
    messages = {str(step.message) for row in lower(schedule, (Edge(0, 1, False),)) for step in row if step.message}
    assert messages == {"a0>1.0"}


@given(p=st.integers(1, 6), m=st.integers(1, 9), name=st.sampled_from(["gpipe", "1f1b"]), lookahead=st.integers(0, 3))
def test_every_message_is_posted_awaited_sent_and_waited_for_once(p, m, name, lookahead):
    edges = chain(p) + ((Edge(0, p - 1, False),) if p > 2 else ())
    steps = lower(make(name, stages=p, micro_batches=m), edges, lookahead=lookahead)
    count = {kind: [step.message for row in steps for step in row if step.kind is kind] for kind in Kind}
    expected = m * sum(1 + edge.gradient for edge in edges)
    for kind in (Kind.POST, Kind.WAIT_RECEIVE, Kind.SEND, Kind.WAIT_SEND):
        assert len(count[kind]) == len(set(count[kind])) == expected
