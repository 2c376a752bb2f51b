"""Whom the watchdog blames, from where every rank is."""

from autopipe.executor.deadlines import Deadlines
from autopipe.executor.judgement import first_cause, table
from autopipe.executor.whereabouts import Doing, Place, Whereabouts
from autopipe.schedules.action import Action, Op
from autopipe.schedules.comms import Kind, Message, Step

NAMES = ("rank 0 (stage 0)", "rank 1 (stage 1)", "rank 2 (stage 2)")


def place(doing: Doing, age_s: float, what: str = "F1.2", limit_s: float = 30.0) -> Place:
    return Place(doing=doing, what=what, age_s=age_s, limit_s=limit_s, step=7, longest_s=0.012)


WAITS = place(Doing.WAITING, 31.0, "the output of F0.2")


def test_the_rank_that_computes_too_long_is_stuck_and_not_those_that_wait_for_it() -> None:
    cause = first_cause([WAITS, place(Doing.COMPUTING, 33.0), WAITS], NAMES)
    assert cause == ("rank 1 (stage 1) is stuck: it has been in F1.2 for 33.0 s, and its longest action took 12 ms")


def test_a_rank_without_an_answer_comes_before_all_else() -> None:
    cause = first_cause([WAITS, None, place(Doing.COMPUTING, 33.0)], NAMES)
    assert cause is not None
    assert cause.startswith("rank 1 (stage 1) gives no sign of life")
    assert "rank 0 (stage 0) waited 31.0 s for the output of F0.2" in cause


def test_a_rank_that_left_by_itself_is_named() -> None:
    gone = place(Doing.ENDED, 1.0, "it left by itself")
    assert first_cause([WAITS, gone, WAITS], NAMES) == (
        "rank 1 (stage 1) has ended (it left by itself) while others wait for it"
    )


def test_nobody_is_blamed_while_a_rank_is_within_its_deadline() -> None:
    assert first_cause([WAITS, place(Doing.COMPUTING, 29.0), WAITS], NAMES) is None
    assert first_cause([WAITS, place(Doing.OUTSIDE, 500.0, limit_s=600.0), WAITS], NAMES) is None
    assert first_cause([WAITS, place(Doing.BUSY, 5000.0), WAITS], NAMES) is None


def test_a_rank_between_steps_is_blamed_only_if_another_waits() -> None:
    idle = place(Doing.OUTSIDE, 700.0, "between steps", limit_s=600.0)
    assert first_cause([idle] * 3, NAMES) is None
    cause = first_cause([WAITS, idle, WAITS], NAMES)
    assert cause is not None
    assert cause.startswith("rank 1 (stage 1) is stuck: it has been in between steps")


def test_ranks_that_all_wait_too_long_are_told_so() -> None:
    cause = first_cause([WAITS, place(Doing.WAITING, 40.0, "the output of F0.3"), WAITS], NAMES)
    assert cause == ("every rank waits for another, rank 1 (stage 1) the longest, 40.0 s for the output of F0.3")


def test_the_table_has_a_line_for_every_rank() -> None:
    lines = table([WAITS, None, place(Doing.COMPUTING, 0.5)], NAMES).splitlines()
    assert lines == [
        "rank              step  for      last action",
        "rank 0 (stage 0)     7  31.0 s   waits for the output of F0.2",
        "rank 1 (stage 1)     -  -        no sign of life",
        "rank 2 (stage 2)     7  500 ms   in F1.2",
    ]


def test_limits_follow_the_longest_action_of_measured_steps() -> None:
    where = Whereabouts(deadlines=Deadlines(first_s=300.0, floor_s=0.001, factor=25.0))
    where.begin()
    where.expect_compilation()
    assert where.place().limit_s == 300.0
    where.compute("reading the mini-batch")
    where.end_step()
    where.begin()
    assert where.place().limit_s == 300.0  # a step with new shapes measures nothing
    where.compute("reading the mini-batch")
    where.end_step()
    where.begin()
    longest = where.place().longest_s
    assert longest is not None
    assert where.place().limit_s == max(0.001, 25.0 * longest)


def test_a_place_names_action_and_message_and_the_rank_that_is_waited_for() -> None:
    where = Whereabouts()
    where.stage_ranks = (0, 1, 0, 1)
    where.compute(Step(Kind.COMPUTE, action=Action(Op.FORWARD, 3, 2)))
    assert where.place().what == "F3.2 (forward of stage 3, micro-batch 2)"
    where.wait(Step(Kind.WAIT_RECEIVE, message=Message(1, 2, 5)))
    assert (where.place().what, where.place().peer) == ("the output of F1.5 (stage 1, micro-batch 5)", 1)
    where.wait(Step(Kind.WAIT_SEND, message=Message(3, 2, 5, True)))
    assert where.place().peer == 0
