"""Notices are a few words in the store of a process group: why all must stop, and where each rank is when asked."""

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed as dist

_ANSWER_S = 1.0
_TICK_S = 0.02
_PATIENCE = timedelta(seconds=5)


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks read: the number of the last roll call, and the sentence that ends the run, if there is one."""

    roll: int = 0
    sentence: str = ""
    author: int = -1


class Notices:
    """One rank's access to the board, over a connection of its own, so that no waiting call holds it up.

    Every method raises RuntimeError if the store gives no answer, or is gone; `renew` tells which.

    All ranks make it at the same point between the process groups that they make: their number tells its words from
    those of other boards.
    """

    def __init__(self) -> None:
        world = dist.distributed_c10d._world
        self._origin: Any = dist.distributed_c10d._get_default_store()
        self._prefix = f"autopipe/{world.group_count}"
        self._connect()
        self._answered = 0
        self._place, self._size = dist.get_rank(), dist.get_world_size()
        self._store.compare_set("board", "", msgspec.json.encode(Board()).decode())

    def renew(self) -> bool:
        """Return whether there is still a store, and if so connect to it anew after a call has failed.

        A store whose process has not run for some seconds, on a machine that is overloaded, answers late: on the old
        connection that answer would be taken for the next one.
        """
        store = self._origin
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        if not isinstance(store, dist.TCPStore):
            return False
        try:
            socket.create_connection((store.host, store.port), timeout=_PATIENCE.total_seconds()).close()
        except OSError:
            return False
        self._connect()
        return True

    def _connect(self) -> None:
        self._store = dist.PrefixStore(self._prefix, self._origin.clone())
        self._store.set_timeout(_PATIENCE)

    def read(self) -> Board:
        """Return the board."""
        return msgspec.json.decode(self._store.get("board"), type=Board)

    def declare(self, sentence: str) -> Board:
        """Write why all must stop, unless it is written already, and return the board."""
        return self._change(
            lambda board: (
                board if board.sentence else msgspec.structs.replace(board, sentence=sentence, author=self._place)
            )
        )

    def answer(self, board: Board, note: bytes) -> None:
        """Answer the roll calls up to the board's that this rank has not answered yet."""
        while self._answered < board.roll:
            self._answered += 1
            self._store.set(f"answer/{self._answered}/{self._place}", note.decode())

    def leave(self, note: bytes) -> None:
        """Say for good where this rank is: it counts as its answer to every later roll call."""
        self._store.set(f"left/{self._place}", note.decode())

    def last_word(self, place: int) -> bytes | None:
        """Return what a rank said when it left for good; None if it has said nothing."""
        return self._answer_of(place, (f"left/{place}",)).get(place)

    def call_roll(self, note: bytes) -> tuple[bytes | None, ...]:
        """Return what every rank answers within a second; None of those that are silent."""
        roll = self._change(lambda board: msgspec.structs.replace(board, roll=board.roll + 1)).roll
        answers: dict[int, bytes] = {}
        deadline = time.monotonic() + _ANSWER_S
        while len(answers) < self._size and time.monotonic() < deadline:
            # Another rank may call the roll at the same time, and waits for this one.
            self.answer(self.read(), note)
            for place in range(self._size):
                if place not in answers:
                    answers |= self._answer_of(place, (f"answer/{roll}/{place}", f"left/{place}"))
            time.sleep(_TICK_S)
        return tuple(answers.get(place) for place in range(self._size))

    def _answer_of(self, place: int, keys: Sequence[str]) -> dict[int, bytes]:
        found = [self._store.get(key) for key in keys if self._store.check([key])]
        return {place: found[0]} if found else {}

    def _change(self, change: Callable[[Board], Board]) -> Board:
        """Replace the board by what ``change`` makes of it, whoever else writes, and return it."""
        while True:
            board = self.read()
            changed = change(board)
            if changed == board:
                return board
            wanted = msgspec.json.encode(changed).decode()
            found = self._store.compare_set("board", msgspec.json.encode(board).decode(), wanted)
            if found.decode() == wanted:
                return changed
