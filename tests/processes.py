"""A pool of processes that tests run gloo ranks on, started once per test session."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class ProcessPool:
    """``size`` idle processes; `run` makes the first p of them the ranks of a fresh gloo group."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="autopipe-pool-")
        self._runs = 0
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def run(self, call: Callable[..., Any], ranks: int, *arguments: Any, timeout_s: float = 60.0) -> list[Any]:
        """Return ``call(rank, *arguments)`` of every rank; raise what the ranks raised, as text."""
        self._runs += 1
        store = str(Path(self._folder.name) / f"store-{self._runs}")
        for end in self._ends[:ranks]:
            end.send((call, ranks, store, arguments))
        results, faults = [], []
        for rank, end in enumerate(self._ends[:ranks]):
            if not end.poll(timeout_s):
                self.close()
                raise TimeoutError(f"rank {rank} gave no answer within {timeout_s} s")
            good, result = end.recv()
            (results if good else faults).append(result)
        if faults:
            raise AssertionError("\n".join(faults))
        return results

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(rank: int, end: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            call, ranks, store, arguments = end.recv()
        except EOFError:
            return
        try:
            dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
            try:
                answer = (True, call(rank, *arguments))
            finally:
                dist.destroy_process_group()
        except BaseException:
            answer = (False, f"rank {rank}:\n{traceback.format_exc()}")
        end.send(answer)
