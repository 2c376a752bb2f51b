import queue
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.errors import InputError
from autopipe.hardware.cluster import Link
from autopipe.profiler.links import fit_link, measure_link, ping_pong
from tests.processes import ProcessPool


@given(st.integers(0, 10**7), st.integers(10**6, 10**12))
def test_a_straight_line_is_found_again(latency_ns: int, bytes_per_s: int) -> None:
    sizes = (8, 10**4, 10**6, 10**8)
    link = fit_link([(size, latency_ns + size * 1e9 / bytes_per_s) for size in sizes])
    assert link.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-3, abs=1)
    assert link.latency_ns == pytest.approx(latency_ns, rel=1e-3, abs=1 + 8e9 / bytes_per_s)


def test_latency_is_never_negative() -> None:
    link = fit_link([(1000, 500.0), (2000, 1500.0), (3000, 2500.0)])
    assert link.latency_ns == 0
    assert link.bytes_per_s > 0


def test_small_messages_fix_the_latency_though_large_ones_scatter() -> None:
    link = fit_link([(8, 10_000.0), (1000, 10_100.0), (10**6, 180_000.0), (10**7, 900_000.0)])
    assert link.latency_ns == pytest.approx(10_000, rel=0.05)


@pytest.mark.parametrize("samples", [[], [(8, 100.0), (8, 120.0)], [(8, 100.0), (1000, 100.0)]])
def test_samples_that_show_no_bandwidth_are_refused(samples: list[tuple[int, float]]) -> None:
    with pytest.raises(InputError):
        fit_link(samples)


def test_ping_pong_takes_half_of_there_and_back() -> None:
    there: queue.Queue[int] = queue.Queue()
    back: queue.Queue[int] = queue.Queue()
    other: list[tuple[tuple[int, float], ...]] = []

    def slow(size: int) -> None:
        time.sleep(0.002)
        back.put(size)

    answering = threading.Thread(
        target=lambda: other.append(ping_pong(slow, lambda size: _expect(there, size), starts=False, sizes=(1, 2)))
    )
    answering.start()
    samples = ping_pong(there.put, lambda size: _expect(back, size), starts=True, sizes=(1, 2))
    answering.join()
    assert [size for size, _ in samples] == [size for size, _ in other[0]] == [1, 2]
    assert all(duration >= 1e6 for _, duration in samples)
    assert there.qsize() == back.qsize() == 0


def test_two_ranks_see_the_same_link(processes: ProcessPool) -> None:
    first, second = processes.run(_rank, 2)
    assert first.bytes_per_s > 0
    assert second.bytes_per_s > 0
    assert first.latency_ns >= 0


def _rank(rank: int) -> Link:
    with pytest.raises(InputError, match="no link to itself"):
        measure_link(rank)
    return measure_link(1 - rank)


def _expect(messages: queue.Queue[int], size: int) -> None:
    assert messages.get(timeout=10) == size


def test_a_link_needs_a_process_group() -> None:
    with pytest.raises(InputError, match="init_process_group"):
        measure_link(1)
