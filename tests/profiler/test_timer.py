import gc
import statistics
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopipe.profiler.timer import MINIMUM_ROUNDS, WARM_UP_ROUNDS, Samples, choose_clock, repeat

durations = st.lists(st.integers(1, 10**9), min_size=1, max_size=20)


@given(durations)
def test_spread_describes_the_pool(pool: list[int]) -> None:
    samples = Samples()
    for duration in pool:
        samples.add("layer", duration)
    spread = samples.spread("layer")
    assert spread is not None
    assert spread.minimum_ns == min(pool)
    assert spread.rounds == len(pool)
    assert samples.median("layer") == round(statistics.median(pool))
    within = sum(abs(duration - statistics.median(pool)) <= spread.mad_ns + 1 for duration in pool)
    assert 2 * within >= len(pool)


def test_a_key_that_was_never_timed_has_no_spread_and_takes_nothing() -> None:
    assert Samples().spread("layer") is None
    assert Samples().median("layer") == 0


def test_relative_deviation_is_weighted_by_time() -> None:
    samples = Samples()
    for heavy, light in ((1000, 1), (1000, 2), (1000, 3)):
        samples.add("heavy", heavy)
        samples.add("light", light)
    assert samples.relative_deviation() == pytest.approx(1 / 1002)


def test_steady_timings_end_after_the_fewest_rounds() -> None:
    calls = 0

    def one_round(samples: Samples) -> None:
        nonlocal calls
        calls += 1
        samples.add("layer", 1000)

    samples = repeat(one_round, budget_s=60, least_s=0)
    assert calls == WARM_UP_ROUNDS + MINIMUM_ROUNDS
    assert samples.rounds == MINIMUM_ROUNDS


def test_warm_up_does_not_count() -> None:
    pending = [10**9] * WARM_UP_ROUNDS + [1000] * MINIMUM_ROUNDS
    samples = repeat(lambda samples: samples.add("layer", pending.pop(0)), budget_s=60, least_s=0)
    assert samples.median("layer") == 1000


def test_unsteady_timings_end_with_the_budget() -> None:
    start = time.monotonic()
    reported: list[float] = []
    samples = repeat(
        lambda samples: samples.add("layer", time.monotonic_ns() % 1000 + 1),
        budget_s=0.05,
        progress=lambda _, share: reported.append(share),
    )
    assert samples.rounds >= 1
    assert 0.05 <= time.monotonic() - start < 5
    assert reported[-1] == 1.0
    assert reported == sorted(reported)


def test_without_a_budget_one_round_counts() -> None:
    calls: list[Samples] = []
    samples = repeat(calls.append, budget_s=0)
    assert samples.rounds == 1
    assert len(calls) == 2


def test_garbage_is_not_collected_inside_a_round_and_is_afterwards() -> None:
    seen: list[bool] = []
    repeat(lambda _: seen.append(gc.isenabled()), budget_s=0)
    assert seen == [False, False]
    assert gc.isenabled()


def test_one_thread_is_timed_by_its_own_time_and_several_by_the_wall() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert choose_clock(torch.device("cpu")).name == "thread time"
        torch.set_num_threads(2)
        assert choose_clock(torch.device("cpu")).name == "wall clock, 2 threads"
    finally:
        torch.set_num_threads(threads)


def test_thread_time_leaves_out_sleep() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        clock = choose_clock(torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)
    start, wall = clock.mark(), time.perf_counter_ns()
    time.sleep(0.05)
    clock.finish()
    assert clock.between(start, clock.mark()) < (time.perf_counter_ns() - wall) / 2
