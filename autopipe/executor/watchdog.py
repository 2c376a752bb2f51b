"""The watchdog of a process looks after its rank: no failure of any rank leaves it waiting.

A thread reads the board that all ranks share. It answers roll calls, calls the roll when its own rank is over its
deadline, and when the board says why all must stop it wakes its rank out of the wait that it is in, so that the
rank raises that sentence. A rank that cannot be woken within two seconds is ended.
"""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec
import torch.distributed as dist

from autopipe.errors import AutopipeError, StepError
from autopipe.executor.deadlines import Deadlines
from autopipe.executor.judgement import GO_ON, first_cause, lost, table
from autopipe.executor.last_words import flush_output, say
from autopipe.executor.whereabouts import Doing, Place, Whereabouts
from autopipe.transport.distributed import DistributedEndpoint
from autopipe.transport.endpoint import TransportError
from autopipe.transport.notices import Board, Notices

_POLL_S = 0.1
_WAKE_S = 2.0
_STORE_SILENCE_S = 3.0
_GOODBYE_S = 3.0
_STORE_STOPPED = (
    "the store of the process group gives no answer: rank 0, or the launcher, holds it and has been stopped or is gone"
)
EXIT_CODE = 1


class Watchdog:
    """Watches one process of a pipeline; made as soon as the process has joined its group.

    Attributes
    ----------
    whereabouts : Whereabouts
        Where this rank is.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self.whereabouts = Whereabouts(deadlines=deadlines)
        self._notices = Notices()
        self._place = dist.get_rank()
        self._names = tuple(f"rank {place}" for place in range(dist.get_world_size()))
        self._endpoint: DistributedEndpoint | None = None
        self._closed = threading.Event()
        self._decided = threading.Event()
        self._told = threading.Event()
        self._asked: Callable[[], str] | None = None
        self._board = Board()
        self._places: list[Place | None] = []
        self._heard = time.monotonic()
        self._next_roll = 0.0
        self._threads = [
            threading.Thread(target=loop, name=f"autopipe-{name}", daemon=True)
            for name, loop in (("listener", self._listen), ("guard", self._guard))
        ]
        for thread in self._threads:
            thread.start()
        self._hook = sys.excepthook
        sys.excepthook = self._ended_by
        atexit.register(self.close)

    def attach(self, endpoint: DistributedEndpoint, names: Sequence[str]) -> None:
        """Take the process's end of the pipeline group, and what each process is called in sentences."""
        self._endpoint, self._names = endpoint, tuple(names)

    @contextlib.contextmanager
    def watching(self, what: str, *, doing: Doing = Doing.WAITING) -> Iterator[None]:
        """Watch over a call that all ranks make; ``what`` says what it waits for.

        Raises
        ------
        StepError
            The same on all ranks, if they cannot go on together.
        """
        self.check()
        self.whereabouts.be(doing, what)
        try:
            yield
        except TransportError as error:
            raise self.lost(error) from error
        except AutopipeError as error:
            if isinstance(error.__cause__, TransportError):
                raise self.lost(error.__cause__) from error.__cause__
            raise
        except BaseException as error:
            agreed = self.gave_up(error)
            if isinstance(error, Exception) and self._board.author not in (Board().author, self._place):
                # A call that another rank's failure has cut short, in code that knows no ranks (a sharded module).
                raise agreed from error
            raise
        finally:
            self.whereabouts.leave()
        self.check()

    @property
    def sentence(self) -> str:
        """Why all must stop; empty while there is no reason."""
        return self._board.sentence

    def close(self) -> None:
        """Stop watching, and leave word for those that may wait for this rank."""
        self._closed.set()
        here = threading.current_thread()
        for thread in self._threads:
            if thread is not here:
                # A store that gives no answer must not hold up whoever closes.
                thread.join(_GOODBYE_S)
        # A process that ends while its groups are alive can be aborted by gloo's threads.
        self._endpoint = None
        if here not in self._threads:
            # Else the garbage collector closes from a thread of ours, which the end of the process has yet to join:
            # a thread that the interpreter's end meets within the store's code aborts the process.
            atexit.unregister(self.close)
        if sys.excepthook == self._ended_by:
            sys.excepthook = self._hook

    def check(self) -> None:
        """Return if the ranks can go on.

        Raises
        ------
        StepError
            If they cannot.
        """
        if self.sentence:
            self._told.set()
            raise StepError(f"{self.sentence}. {GO_ON}")

    def lost(self, error: BaseException) -> StepError:
        """Return the error that every rank raises, after a call to peers failed here."""
        place = self.whereabouts.place()
        peer = None if place.peer is None or self._endpoint is None else self._endpoint.process_of(place.peer)
        return self._agreed(lambda: self._cause_of_loss(place, peer, error))

    def gave_up(self, error: BaseException) -> StepError:
        """Return the error that every other rank raises, after this one left a step that it cannot take up again."""
        what = self.whereabouts.place().what
        return self._agreed(lambda: f"{self._names[self._place]} gave up in {what}: {_short(error)}")

    def _agreed(self, cause: Callable[[], str]) -> StepError:
        """Let the listener publish ``cause()``, unless another rank was first, and return what all raise."""
        self._told.set()
        self._asked = cause
        if not self._decided.wait(_STORE_SILENCE_S):
            self._board = Board(sentence=_STORE_STOPPED)
        return StepError(f"{self.sentence}. {GO_ON}")

    def _cause_of_loss(self, place: Place, peer: int | None, error: BaseException) -> str:
        if peer is not None and self._notices.last_word(peer) is None:
            return lost(self._names[peer], self._names[self._place], place)
        return (
            first_cause(self._call_roll(place), self._names)
            or f"{self._names[self._place]} lost a connection while it waited for {place.what} ({_short(error)}), "
            "though every rank is alive: look at the network between the machines"
        )

    def _listen(self) -> None:
        while not self._closed.wait(_POLL_S if self._asked is None else 0.0):
            try:
                board = self._notices.read()
                self._heard = time.monotonic()
                self._notices.answer(board, msgspec.json.encode(self.whereabouts.place()))
                if not board.sentence:
                    board = self._look_out(board)
                if board.sentence:
                    self._end(board)
                    return
            except RuntimeError:
                if not self._has_store():
                    self._outlive_store()
                    return

        place = msgspec.structs.replace(self.whereabouts.place(), doing=Doing.ENDED, what="it left by itself")
        with contextlib.suppress(RuntimeError):  # the store may be gone, and then nobody reads
            self._notices.leave(msgspec.json.encode(place))

    def _has_store(self) -> bool:
        """Return whether the store that has not answered is there, and answers now or later."""
        try:
            return self._notices.renew()
        except RuntimeError:
            return False

    def _outlive_store(self) -> None:
        """End the rank once it needs the others: the store is gone, as it also is where all have done their work."""
        has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        holder = "the launcher" if has_agent else self._names[0]
        while not self._closed.wait(_POLL_S):
            place = self.whereabouts.place()
            if self._asked is not None or (place.doing is not Doing.OUTSIDE and place.age_s > 1.0):
                self._end(Board(sentence=f"{holder} has ended, and the store of the process group with it"))
                return

    def _look_out(self, board: Board) -> Board:
        """Publish what this rank has met, or what a roll call tells once it is over its deadline."""
        cause: str | None = None
        if self._asked is not None:
            cause = self._asked()
        place = self.whereabouts.place()
        now = time.monotonic()
        if cause is None and place.doing is not Doing.OUTSIDE and place.age_s > place.limit_s and now > self._next_roll:
            cause = first_cause(self._call_roll(place), self._names)
            self._places = self._places if cause is not None else []
            self._next_roll = time.monotonic() + min(place.limit_s, 10.0)
        return self._notices.declare(cause) if cause is not None else board

    def _call_roll(self, own: Place) -> list[Place | None]:
        answers = list(self._notices.call_roll(msgspec.json.encode(own)))
        self._places = [None if note is None else msgspec.json.decode(note, type=Place) for note in answers]
        return self._places

    def _end(self, board: Board) -> None:
        """Say why all must stop, wake the rank and, if it does not wake, end it."""
        self._board = board
        is_author = board.author == self._place
        last = self.whereabouts.place()
        if is_author:
            say(f"autopipe: {board.sentence}.")
            with contextlib.suppress(RuntimeError):  # the table is a help; the sentence stands without it
                say(table(self._places or self._call_roll(last), self._names))
        self._decided.set()
        start = time.monotonic()
        is_culprit = board.sentence.startswith(self._names[self._place] + " ")
        while not self._told.is_set() and not self._closed.is_set():
            is_stuck = self.whereabouts.is_inside or is_culprit
            if not is_stuck:
                start = time.monotonic()
            elif time.monotonic() - start > _WAKE_S:
                self._leave(board.sentence)
            elif (endpoint := self._endpoint) is not None:
                endpoint.cut()
            time.sleep(_POLL_S)

    def _guard(self) -> None:
        """End a rank that is over its deadline while the store says nothing any more."""
        while not self._closed.wait(_POLL_S * 5):
            place = self.whereabouts.place()
            is_late = place.doing is not Doing.OUTSIDE and place.age_s > place.limit_s
            if is_late and time.monotonic() - self._heard > _STORE_SILENCE_S and not self.sentence:
                self._end(Board(sentence=_STORE_STOPPED))
                return

    def _leave(self, sentence: str) -> None:
        """End the process: its rank is in a call that cannot be ended otherwise."""
        say(f"autopipe: {self._names[self._place]} leaves. {sentence}. {GO_ON}")
        flush_output()
        os._exit(EXIT_CODE)

    def _ended_by(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        """Tell the others of an exception that ends this process."""
        if not self.sentence and not self._closed.is_set():
            what = self.whereabouts.place().what
            self._agreed(lambda: f"{self._names[self._place]} was ended {what} by {_short(error)}")
        return self._hook(kind, error, trace)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
