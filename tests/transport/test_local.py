import concurrent.futures
import threading

import pytest
import torch

from autopipe.transport.endpoint import TransportError
from autopipe.transport.local import Hub


def hub(ranks: int = 2, timeout_s: float = 5.0) -> Hub:
    return Hub((torch.device("cpu"),) * ranks, timeout_s=timeout_s)


def test_a_message_is_copied_into_the_buffer() -> None:
    left, right = hub().endpoints()
    source, buffer = torch.ones(3), torch.zeros(3)
    sent = left.send(source, peer=1, tag=7)
    right.receive(buffer, peer=0, tag=7).wait()
    sent.wait()
    source.zero_()
    assert buffer.tolist() == [1.0, 1.0, 1.0]


def test_tags_keep_messages_apart() -> None:
    left, right = hub().endpoints()
    buffers = torch.zeros(2, 1)
    for tag in (0, 1):
        left.send(torch.tensor([float(tag)]), peer=1, tag=tag)
    for tag in (1, 0):
        right.receive(buffers[tag], peer=0, tag=tag).wait()
    assert buffers.flatten().tolist() == [0.0, 1.0]


def test_a_send_is_not_over_before_its_receive() -> None:
    left, _ = hub(timeout_s=0.05).endpoints()
    with pytest.raises(TransportError, match=r"0\.05 s"):
        left.send(torch.ones(1), peer=1, tag=0).wait()


def test_an_abort_wakes_who_waits() -> None:
    shared = hub(timeout_s=60.0)
    _, right = shared.endpoints()
    threading.Timer(0.05, lambda: shared.abort("rank 0 stopped")).start()
    with pytest.raises(TransportError, match="rank 0 stopped"):
        right.receive(torch.zeros(1), peer=0, tag=0).wait()


def test_a_hub_works_again_after_a_reset() -> None:
    shared = hub()
    left, right = shared.endpoints()
    left.send(torch.ones(1), peer=1, tag=0)
    shared.abort("over")
    shared.reset()
    buffer = torch.zeros(1)
    left.send(torch.full((1,), 2.0), peer=1, tag=0)
    right.receive(buffer, peer=0, tag=0).wait()
    assert buffer.item() == 2.0


def test_sums_and_notes_reach_every_rank() -> None:
    ends = hub(3).endpoints()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for _ in range(20):
            sums = list(pool.map(lambda end: end.open_sum(1).finish(torch.tensor([float(end.rank)])), ends))
            notes = list(pool.map(lambda end: end.gather_notes(b"%d" % end.rank), ends))
            assert [total.item() for total in sums] == [3.0] * 3
            assert notes == [(b"0", b"1", b"2")] * 3
