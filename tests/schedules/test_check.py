"""The check of schedules."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import ScheduleError
from autopipe.schedules.action import Action, Op, Schedule, parse_schedule
from autopipe.schedules.check import check
from autopipe.schedules.comms import Edge, chain
from autopipe.schedules.named import NAMES, make

SKIPS = (Edge(0, 2), Edge(0, 3, False), Edge(1, 3))


def refused(text: str, edges: tuple[Edge, ...] | None = None) -> str:
    schedule = parse_schedule(text)
    with pytest.raises(ScheduleError) as caught:
        check(schedule, chain(schedule.stages) if edges is None else edges)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@given(stages=st.integers(1, 8), micro_batches=st.integers(1, 20))
def test_every_named_schedule_passes(name, stages, micro_batches):
    check(make(name, stages=stages, micro_batches=micro_batches), chain(stages))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7, 12])
def test_skips_pass(name, micro_batches):
    check(make(name, stages=4, micro_batches=micro_batches), chain(4) + SKIPS)


@given(stages=st.integers(1, 5), micro_batches=st.integers(1, 9), depth=st.integers(0, 4))
def test_deeper_warm_up_passes(stages, micro_batches, depth):
    check(make("1f1b", stages=stages, micro_batches=micro_batches, depth=depth), chain(stages))


def test_split_backward_passes():
    check(parse_schedule("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1\nF1.0 I1.0 F1.1 I1.1 W1.1 W1.0"), chain(2))


def test_two_stages_on_one_rank_pass():
    check(parse_schedule("F0.0 F2.0 B2.0 B0.0\nF1.0 B1.0"), chain(3))


def test_a_missing_backward_marks_the_end_of_its_rank():
    assert "rank 1 | F1.0 F1.1 B1.0 > <" in refused("F0.0 F0.1 B0.0 B0.1\nF1.0 F1.1 B1.0")


def test_a_missing_weight_gradient_is_named():
    assert "without W0.0" in refused("F0.0 I0.0")


def test_an_action_that_comes_twice_is_marked():
    assert "rank 0 | F0.0 >F0.0< B0.0" in refused("F0.0 F0.0 B0.0")


def test_a_second_backward_is_marked():
    assert "F0.0 B0.0 >I0.0<" in refused("F0.0 B0.0 I0.0")


def test_a_backward_before_its_forward_is_marked():
    assert "rank 1 | >B1.0< F1.0" in refused("F0.0 B0.0\nB1.0 F1.0")


def test_a_weight_gradient_before_its_input_gradient_is_marked():
    assert "F0.0 >W0.0< I0.0" in refused("F0.0 W0.0 I0.0")


def test_a_stage_before_the_one_that_feeds_it_on_its_own_rank_is_marked():
    assert ">F1.0<" in refused("F1.0 F0.0 B1.0 B0.0")


def test_ranks_that_wait_for_each_other_are_marked():
    message = refused("F0.0 B0.0 F0.1 B0.1\nF1.0 F1.1 B1.0 B1.1")
    assert "rank 0 | F0.0 >B0.0< F0.1 B0.1" in message
    assert "rank 1 | F1.0 >F1.1< B1.0 B1.1" in message


def test_micro_batches_may_be_read_in_another_order_than_sent():
    check(parse_schedule("F0.0 F0.1 B0.0 B0.1\nF1.1 F1.0 B1.0 B1.1"), chain(2))


def test_an_action_on_the_wrong_rank_is_marked():
    schedule = Schedule(name="x", micro_batches=1, stage_ranks=(0, 1), actions=((Action(Op.FORWARD, 1, 0),), ()))
    with pytest.raises(ScheduleError, match="stage 1 is on rank 1"):
        check(schedule, chain(2))


def test_an_edge_that_goes_back_is_refused():
    with pytest.raises(ScheduleError, match="only travel forward"):
        check(make("1f1b", stages=2, micro_batches=1), (Edge(1, 0),))


def test_stages_may_be_read_in_another_order_than_sent():
    """Rank 0 sends stage 1's inputs first and rank 1 reads stage 3's first."""
    text = "F0.0 F0.1 F0.2 F0.3 F2.0 F2.1 F2.2 F2.3\nF3.0 F3.1 F3.2 F3.3 F1.0 F1.1 F1.2 F1.3"
    check(parse_schedule(text), (Edge(0, 1), Edge(2, 3)))


def test_outputs_that_are_read_late_may_leave_late():
    """In looped BFS rank 1 makes all of stage 1 while rank 0, which reads it as stage 2, makes all of stage 0."""
    check(make("bfs", stages=2, micro_batches=16, virtual=2), chain(4))


@given(stages=st.integers(2, 4), micro_batches=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_a_shuffled_schedule_passes_only_if_it_runs_unbuffered(stages, micro_batches, seed):
    """The check against a plain interpreter that tries every rank in turn over the actions themselves."""
    order = random.Random(seed)
    good = make("1f1b", stages=stages, micro_batches=micro_batches)
    rows = [list(row) for row in good.actions]
    row = order.choice(rows)
    first, second = order.randrange(len(row)), order.randrange(len(row))
    row[first], row[second] = row[second], row[first]
    schedule = Schedule(
        name="shuffled",
        micro_batches=micro_batches,
        stage_ranks=good.stage_ranks,
        actions=tuple(tuple(row) for row in rows),
    )
    try:
        check(schedule, chain(stages))
    except ScheduleError:
        return
    done: set[tuple[str, int, int]] = set()
    at = [0] * stages
    for _ in range(stages * len(rows[0])):
        for rank, actions in enumerate(rows):
            while at[rank] < len(actions):
                op, stage, i = actions[at[rank]].op, actions[at[rank]].stage, actions[at[rank]].micro_batch
                forward = op is Op.FORWARD
                feeds = ("F", stage - 1, i) if forward else ("B", stage + 1, i)
                if 0 <= feeds[1] < stages and feeds not in done:
                    break
                done.add((str(op), stage, i))
                at[rank] += 1
    assert all(at[rank] == len(actions) for rank, actions in enumerate(rows))
