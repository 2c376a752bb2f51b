"""The ranks of this process are called together: its only one under torchrun, otherwise a thread for each of all."""

import contextlib
from collections.abc import Callable
from typing import TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopipe.errors import InputError
from autopipe.executor.judgement import first_cause
from autopipe.executor.launch import ThreadRanks
from autopipe.executor.layout import Layout, rank_names
from autopipe.executor.rank import Rank
from autopipe.executor.watchdog import Watchdog
from autopipe.executor.whereabouts import Doing
from autopipe.transport.endpoint import Endpoint

Result = TypeVar("Result")


class Ranks:
    """What runs the ranks of this process.

    Parameters
    ----------
    all : tuple of Rank
        By rank, and of equal rank by replica.
    threads : ThreadRanks, optional
        Their threads, one for each of ``all``.
    watchdog : Watchdog, optional
        That of the process, where it holds one rank of several processes.

    Attributes
    ----------
    endpoint : Endpoint or None
        That of the process's only rank; None where all ranks are threads of this process.
    """

    def __init__(
        self,
        layout: Layout,
        all: tuple[Rank, ...],
        *,
        threads: ThreadRanks | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._layout = layout
        self.all = all
        self._threads = threads
        self._watchdog = watchdog
        self._is_closed = False
        self.endpoint: Endpoint | None = all[0].runtime.endpoint if threads is None else None

    @property
    def mesh(self) -> DeviceMesh | None:
        """The processes as pipeline and replicas, if there are several replicas, until they are closed."""
        return self.endpoint.mesh if self.endpoint is not None else None

    @property
    def first(self) -> Rank:
        """The first rank of this process, or its only one."""
        return self.all[0]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of this process's ranks in their pipeline."""
        return tuple(rank.runtime.endpoint.rank for rank in self.all)

    def each(self, call: Callable[[int], Result], what: str) -> tuple[Result, ...]:
        """Return ``call(index)`` of all ranks here, which wait for ``what`` if for nothing more precise.

        Raises
        ------
        StepError
            If the ranks cannot go on together.
        InputError
            If they are closed.
        """
        self._check_open()
        if self._watchdog is not None:
            with self._watchdog.watching(what):
                return (call(0),)
        assert self._threads is not None
        try:
            return self._threads.run(call, self._first_cause)
        finally:
            for rank in self.all:
                rank.runtime.whereabouts.leave()

    def together(self, what: str, *, doing: Doing = Doing.BUSY) -> contextlib.AbstractContextManager[None]:
        """Watch over a call of all processes that takes as long as it takes."""
        if self._watchdog is None:
            return contextlib.nullcontext()
        self._check_open()
        return self._watchdog.watching(what, doing=doing)

    def counted(self, index: int) -> dict[str, nn.Parameter]:
        """Return a rank's parameters by original name, without those that another rank counts as its own."""
        rank = self.all[index]
        if self._threads is not None and rank.runtime.endpoint.replica > 0:
            return {}
        mine = rank.runtime.endpoint.rank
        owners = {tie.name: tie.owner for tie in rank.tied.ties}
        return {name: p for name, p in rank.parameters.items() if owners.get(name, mine) == mine}

    def close(self) -> None:
        """End the threads, or the watch over the process and its part of the groups."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.close()
        if self._watchdog is not None:
            self._watchdog.close()
        if self.endpoint is not None:
            self.endpoint.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InputError("this pipeline is closed, and its ranks have ended: make another with autopipe.pipeline.")

    def _first_cause(self) -> str | None:
        """Return which thread-rank hangs, and in what, if one does."""
        places = [rank.runtime.whereabouts.place() for rank in self.all]
        return first_cause(places, rank_names(self._layout, self.first.runtime.endpoint))
