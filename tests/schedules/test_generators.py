"""Every generator: right in order, free of deadlock, bounded in flight, and drawn as its docstring draws it."""

import inspect
import random
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.errors import InputError, ScheduleError
from autopipe.schedules.action import Op, Schedule, parse_schedule, peak_in_flight
from autopipe.schedules.bfs import bfs
from autopipe.schedules.check import check
from autopipe.schedules.comms import Edge, Kind, Message, chain, lower
from autopipe.schedules.csv import from_csv, to_csv
from autopipe.schedules.dualpipe_v import dualpipe_v
from autopipe.schedules.fitted import StageTimes, fitted
from autopipe.schedules.grid import draw
from autopipe.schedules.interleaved import interleaved
from autopipe.schedules.named import NAMES, make
from autopipe.schedules.pace import NEVER
from autopipe.schedules.zb_v import zb_v
from autopipe.schedules.zero_bubble import zb_h1, zb_h2

P, M, V = st.integers(1, 8), st.integers(1, 20), st.integers(1, 4)


def made(name: str, p: int, m: int, v: int) -> Schedule:
    return make(name, stages=p, micro_batches=m, virtual=v if name in ("interleaved", "bfs") else None)


@settings(deadline=None)
@given(name=st.sampled_from(NAMES), p=P, m=M, v=V)
def test_every_schedule_passes_the_check(name: str, p: int, m: int, v: int) -> None:
    schedule = made(name, p, m, v)
    check(schedule, chain(schedule.stages))
    assert schedule.name == name
    assert schedule.ranks == p


@settings(deadline=None)
@given(name=st.sampled_from(NAMES), p=st.integers(2, 6), m=M, v=st.integers(1, 3), data=st.data())
def test_with_skips_channels_need_no_tags(name: str, p: int, m: int, v: int, data: st.DataObject) -> None:
    schedule = made(name, p, m, v)
    stages = st.integers(0, schedule.stages - 1)
    skips = data.draw(st.sets(st.tuples(stages, stages).filter(lambda pair: pair[0] < pair[1]), max_size=4))
    edges = {Edge(*pair) for pair in skips} | set(chain(schedule.stages))
    check(schedule, sorted(edges))
    sent: dict[tuple[int, int], list[Message]] = {}
    posted: dict[tuple[int, int], list[Message]] = {}
    for row in lower(schedule, sorted(edges)):
        for step in row:
            if step.kind in (Kind.SEND, Kind.POST):
                pair = schedule.stage_ranks[step.message.source], schedule.stage_ranks[step.message.target]
                (sent if step.kind is Kind.SEND else posted).setdefault(pair, []).append(step.message)
    assert sent == posted


@given(name=st.sampled_from(NAMES), p=P, m=M, v=V)
def test_the_text_form_goes_both_ways(name: str, p: int, m: int, v: int) -> None:
    schedule = made(name, p, m, v)
    again = parse_schedule(schedule.to_text(), name=name)
    assert again == schedule


@given(p=P, m=M, v=V)
def test_interleaved_holds_what_its_docstring_says(p: int, m: int, v: int) -> None:
    for rank, actions in enumerate(interleaved(p, m, virtual=v).actions):
        bound = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)
        peak = peak_in_flight(actions)
        assert peak == bound if m % p == 0 else peak <= bound


@given(p=P, m=M)
def test_interleaved_with_one_stage_a_rank_warms_up_twice_as_long_as_1f1b(p: int, m: int) -> None:
    first = interleaved(p, m, virtual=1).actions[0]
    forwards = next(i for i, action in enumerate(first) if action.op is Op.BACKWARD)
    assert forwards == min(m, 2 * (p - 1) + 1)


@given(p=P, m=M)
def test_zero_bubble_holds_the_same_on_every_rank(p: int, m: int) -> None:
    assert {peak_in_flight(actions) for actions in zb_h1(p, m).actions} == {min(m, p)}
    assert {peak_in_flight(actions) for actions in zb_h2(p, m).actions} == {min(m, 2 * p - 1)}


@given(p=P, m=M)
def test_weight_gradients_follow_their_input_gradients_in_order(p: int, m: int) -> None:
    for schedule in (zb_h1(p, m), zb_h2(p, m)):
        for actions in schedule.actions:
            weights = [action.micro_batch for action in actions if action.op is Op.WEIGHT_GRAD]
            assert weights == list(range(m))


@given(p=P, m=st.integers(1, 12), v=V)
def test_bfs_holds_all_micro_batches_on_every_stage(p: int, m: int, v: int) -> None:
    assert {peak_in_flight(actions) for actions in bfs(p, m, virtual=v).actions} == {m * v}


@pytest.mark.parametrize(
    ("generator", "schedule"),
    [
        (interleaved, interleaved(4, 8, virtual=2)),
        (bfs, bfs(4, 8, virtual=2)),
        (zb_h1, zb_h1(4, 8)),
        (zb_h2, zb_h2(4, 8)),
        (zb_v, zb_v(4, 8)),
        (dualpipe_v, dualpipe_v(4, 8)),
    ],
)
def test_the_docstring_draws_the_schedule(generator: object, schedule: Schedule) -> None:
    assert textwrap.indent(draw(schedule), "    ").rstrip() in inspect.getdoc(generator)


def test_the_pace_of_what_cannot_begin_is_never() -> None:
    schedule = parse_schedule("F0.0 B0.0\nB1.0 F1.0")
    assert schedule.pace.forward[1][0] == 3 or schedule.pace.backward[1][0] != NEVER
    crossed = parse_schedule("B0.0 F0.0\nF1.0 B1.0")
    assert crossed.pace.backward[0][0] == NEVER


def test_only_some_schedules_have_virtual_stages() -> None:
    with pytest.raises(InputError, match="choose interleaved, bfs, zb-v or dualpipe-v"):
        make("zb-h1", stages=4, micro_batches=8, virtual=2)
    with pytest.raises(InputError, match="two stages per rank, not 3"):
        make("zb-v", stages=4, micro_batches=8, virtual=3)


@settings(deadline=None)
@given(p=P, m=M)
def test_zb_v_idles_only_while_the_pipeline_fills_and_drains(p: int, m: int) -> None:
    schedule = zb_v(p, m)
    assert all(peak_in_flight(actions) <= 2 * p for actions in schedule.actions)
    cell = 1 + max(len(str(action)) for row in schedule.actions for action in row)
    longest = max(len(line) for line in draw(schedule).splitlines()) - len("rank 0 | ")
    beats = -(-longest // cell)
    if m >= 2 * p - 1:
        assert beats == 6 * m + p - 1
    elif m >= p:
        assert 0 <= beats - (6 * m + p - 1) <= p // 2


@given(p=P, m=M)
def test_dualpipe_v_holds_one_more_than_zb_v(p: int, m: int) -> None:
    assert all(peak_in_flight(actions) <= 2 * p + 1 for actions in dualpipe_v(p, m).actions)


@given(name=st.sampled_from(NAMES), p=P, m=M, v=V)
def test_the_csv_form_goes_both_ways(name: str, p: int, m: int, v: int) -> None:
    schedule = made(name, p, m, v)
    assert from_csv(to_csv(schedule), name=name) == schedule


def test_csv_is_what_torch_reads() -> None:
    assert to_csv(zb_h1(2, 1)) == "0F0,0I0,0W0\n1F0,1I0,1W0\n"
    with pytest.raises(ScheduleError, match="'0SEND_F0' is no computation"):
        from_csv("0F0,0SEND_F0")


def times(seed: int, stages: int) -> list[StageTimes]:
    chance = random.Random(seed)
    return [
        StageTimes(
            forward=chance.randint(1, 30),
            input_grad=chance.randint(1, 30),
            weight_grad=chance.randint(1, 30),
            hop=chance.randint(0, 5),
        )
        for _ in range(stages)
    ]


@settings(deadline=None)
@given(p=P, m=M, seed=st.integers(0, 10**6), room=st.integers(0, 5), split=st.booleans(), shape=st.booleans())
def test_a_fitted_schedule_passes_the_check_within_its_limits(
    p: int, m: int, seed: int, room: int, split: bool, shape: bool
) -> None:
    placement = (*range(p), *reversed(range(p))) if shape else tuple(range(p))
    limits = [len(placement) + room] * p
    schedule = fitted(placement, m, times(seed, len(placement)), limits=limits, split=split)
    check(schedule, chain(schedule.stages))
    assert all(peak_in_flight(row) <= limit for row, limit in zip(schedule.actions, limits, strict=True))


def test_a_limit_that_is_too_small_is_refused() -> None:
    with pytest.raises(InputError, match="raise the limits"):
        fitted((0, 1, 1, 0), 3, times(0, 4), limits=[1, 2])


@pytest.mark.parametrize("p", [2, 4, 8])
def test_1f1b_holds_at_most_fifteen_eighteenths_of_what_gpipe_holds(p: int) -> None:
    held = [
        max(peak_in_flight(row) for row in make(name, stages=p, micro_batches=2 * p).actions)
        for name in ("1f1b", "gpipe")
    ]
    assert held == [p, 2 * p]
    assert held[0] / held[1] <= 15 / 18
