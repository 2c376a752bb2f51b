"""What the executor costs, transfers without overlap, and machines that share a connection."""

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.hardware.cluster import Link
from autopipe.schedules.comms import Edge, chain
from autopipe.schedules.named import make
from autopipe.simulator.conditions import Conditions
from autopipe.simulator.events import run

STAGES = [StageCost(forward_ns=100, backward_ns=200)] * 4


def makespan(conditions: Conditions, *, ranks: int = 2, micro_batches: int = 1, edges=None, **link) -> int:
    schedule = make("1f1b", stages=ranks, micro_batches=micro_batches)
    wires = edges or [
        EdgeCost(edge=edge, forward_bytes=50, backward_bytes=50, link=Link(**link)) for edge in chain(ranks)
    ]
    return run(schedule, STAGES[:ranks], wires, conditions=conditions, with_spans=False).makespan_ns


def test_every_action_and_every_message_costs_its_rank():
    assert makespan(Conditions()) == 600
    assert makespan(Conditions(action_ns=7)) == 600 + 4 * 7
    assert makespan(Conditions(message_ns=9)) == 600 + 2 * 9


def test_bytes_that_are_handed_over_keep_the_sender_and_not_the_message():
    # The sender of 50 bytes at 1 GB/s is kept 50 ns, while they travel: with links as fast, nothing is longer.
    busy = Conditions(message_bytes_per_s=10**9)
    assert makespan(busy, bytes_per_s=10**9) == makespan(Conditions(), bytes_per_s=10**9)
    # The first rank computes three forwards in a row: each but the last is kept up by the message before it.
    many = {"micro_batches": 4}
    assert makespan(busy, **many) > makespan(Conditions(), **many)


def test_a_message_costs_its_receiver_what_it_would_have_computed_meanwhile():
    taking = Conditions(arrival_ns=30)
    # Of one micro-batch every message is waited for, and a rank that waits has time to take it.
    assert makespan(taking, latency_ns=30) == makespan(Conditions(), latency_ns=30)
    # Of four, some come while their reader computes.
    assert makespan(taking, micro_batches=4, latency_ns=30) > makespan(Conditions(), micro_batches=4, latency_ns=30)
    assert taking.taking_ns(10**6) == 30
    assert Conditions(arrival_ns=30, arrival_bytes_per_s=10**9).taking_ns(50) == 80


def test_impossible_conditions_are_named():
    assert Conditions().faults() == ()
    found = Conditions(action_ns=-1, arrival_bytes_per_s=0).faults()
    assert found == ("action_ns is -1, below 0", "arrival_bytes_per_s is 0, below 1")


def test_without_overlap_a_sender_waits_until_its_message_is_on_its_way():
    slow = {"bytes_per_s": 10**9}
    many = {"micro_batches": 4, **slow}
    assert makespan(Conditions(), **slow) == makespan(Conditions(overlap=False), **slow) == 600 + 2 * 50
    # The first rank sends twice before its first backward, and then the last rank's gradients cross its forwards.
    assert makespan(Conditions(overlap=False), **many) > makespan(Conditions(), **many)


def test_messages_between_two_machines_share_what_leaves_and_enters():
    # Ranks 0 and 1 on one machine send to 2 and 3 on another at the same time: 0 to 2 and 1 to 3.
    schedule = make("gpipe", stages=4, micro_batches=1)
    link = Link(bytes_per_s=10**9)
    edges = [
        EdgeCost(edge=edge, forward_bytes=size, link=link)
        for edge, size in (
            (Edge(0, 1, False), 0),
            (Edge(0, 2, False), 1000),
            (Edge(1, 2, False), 1000),
            (Edge(2, 3), 0),
        )
    ]
    apart = run(schedule, STAGES, edges, with_spans=False)
    together = run(schedule, STAGES, edges, conditions=Conditions(nodes=(0, 0, 1, 1)), with_spans=False)
    # The skip leaves at 100 and takes until 1100; the message of rank 1, ready at 200, then comes behind it.
    then = 100 + 100 + 200 + 200
    assert (apart.makespan_ns, together.makespan_ns) == (1200 + then, 2100 + then)
