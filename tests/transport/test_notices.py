"""A store that answers late is connected to anew; one that is gone is told from it."""

import socket
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from autopipe.transport.notices import Notices


@pytest.fixture
def store() -> Iterator[list[dist.TCPStore]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = [dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)]
    own = dist.PrefixStore("start-0", dist.TCPStore("127.0.0.1", port, is_master=False))
    dist.init_process_group("gloo", store=own, rank=0, world_size=1)
    yield server
    dist.destroy_process_group()


def test_words_are_read_over_a_new_connection_until_the_store_is_gone(store: list[dist.TCPStore]) -> None:
    notices = Notices()
    notices.declare("rank 1 is stuck")
    assert notices.renew()
    assert notices.read().sentence == "rank 1 is stuck"
    store.clear()
    with pytest.raises(RuntimeError):
        notices.read()
    assert not notices.renew()
