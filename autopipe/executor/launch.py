"""Ranks are found and started: processes of a torch.distributed group, or threads of this process."""

import atexit
import concurrent.futures
import gc
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

import torch
import torch.distributed as dist

from autopipe import errors
from autopipe.documents.files import DocumentType, decode, encode
from autopipe.documents.plan import MOST_DEVICES
from autopipe.errors import AutopipeError, InputError, StepError
from autopipe.transport.endpoint import TransportError
from autopipe.transport.local import Hub, LocalEndpoint

Result = TypeVar("Result")
_LOOK_S = 0.2
_WAKE_S = 2.0


def under_torchrun() -> bool:
    """Tell whether this process is one rank of several: a group exists, or the launcher's variables are set."""
    if dist.is_available() and dist.is_initialized():
        return True
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def join_group() -> torch.device:
    """Join the process group that the launcher describes, if not done yet, and return this rank's device."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        device = torch.device("cpu")
    else:
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
    if not dist.is_initialized():
        backend, store = dist.get_default_backend_for_device(device), _store_of_this_start()
        if store is None:
            dist.init_process_group(backend)
        else:
            place, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group(backend, store=store, rank=place, world_size=size)
        atexit.register(_leave_group)
    return device


def _store_of_this_start() -> dist.Store | None:
    """Return the launcher's store, with names of their own for what this start of the processes writes into it.

    torchrun keeps its store when it starts processes again, and torch (2.13) uses the same names in it: a process that
    reads where its peer was before cannot connect, and waits for it. None without such a launcher.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    start = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-of-{os.environ['WORLD_SIZE']}"
    return dist.PrefixStore(f"autopipe/start-{start}", store)


def _leave_group() -> None:
    """End the group that `join_group` made: gloo's threads can abort a process that ends with them alive."""
    if dist.is_initialized():
        # The end of a group waits for its threads only if nobody holds it, not even garbage in a cycle.
        gc.collect()
        dist.destroy_process_group()


def local_devices(devices: Sequence[str | torch.device] | None, ranks: int | None) -> tuple[torch.device, ...]:
    """Return the devices of thread-ranks: those given, else all local accelerators, else ``ranks`` times the CPU.

    Raises
    ------
    InputError
        If nothing says how many ranks there should be.
    """
    if ranks is not None and not 0 <= ranks <= MOST_DEVICES:
        raise InputError(f"ranks={ranks} is no number of thread-ranks: pass as many as the plan has.")
    if devices is not None:
        if ranks is not None and ranks != len(devices):
            raise InputError(f"ranks={ranks} and {len(devices)} devices disagree: pass one of them.")
        try:
            return tuple(torch.device(device) for device in devices)
        except RuntimeError as error:
            raise InputError(f"devices= names one that torch does not know: {error}") from error
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        assert kind is not None
        count = torch.accelerator.device_count()
        if ranks is None or ranks <= count:
            return tuple(torch.device(kind.type, index) for index in range(ranks or count))
        raise InputError(f"ranks={ranks} and this machine has {count} devices: pass devices=[...] to share them.")
    if ranks is None:
        raise InputError(
            "no accelerator here and no ranks= given: pass ranks=2 for two thread-ranks on the CPU, or start the "
            "script with torchrun --nproc-per-node 2."
        )
    return (torch.device("cpu"),) * ranks


def broadcast(make: Callable[[int], DocumentType], kind: type[DocumentType]) -> DocumentType:
    """Return on every rank the document of type ``kind`` that rank 0 makes for all ranks; all ranks call it.

    Raises
    ------
    AutopipeError
        On every rank, of the class and with the message that rank 0 met, if it could not make one.
    """
    answer: list[bytes | str] = [b"", ""]
    try:
        if dist.get_rank() == 0:
            answer = ["AutopipeError", "rank 0 stopped before it had a plan: its own output says why."]
            answer = [encode(make(dist.get_world_size())), ""]
    except AutopipeError as error:
        answer = [type(error).__name__, str(error)]
    finally:
        dist.broadcast_object_list(answer, src=0)
    content, message = answer
    if isinstance(content, str):
        raise getattr(errors, content)(message)
    return decode(content, kind, origin="the document of rank 0")


class ThreadRanks:
    """One thread per rank, kept for the life of a pipeline; a rank alone runs in the thread that calls.

    The threads do not keep the process alive, since one that hangs cannot be ended.
    """

    def __init__(self, devices: Sequence[torch.device], *, replicas: int = 1) -> None:
        self._hub = Hub(tuple(devices))
        # A rank alone waits for none, and a thread of its own would cost it page faults in every step.
        threads = len(devices) if len(devices) > 1 else 0
        self._work: tuple[SimpleQueue[Callable[[], None] | None], ...] = tuple(SimpleQueue() for _ in range(threads))
        for rank, work in enumerate(self._work):
            threading.Thread(target=_serve, args=(work,), name=f"autopipe-rank-{rank}", daemon=True).start()
        self._hung = ""
        self.endpoints: tuple[LocalEndpoint, ...] = self._hub.endpoints(replicas)

    def run(
        self, call: Callable[[int], Result], first_cause: Callable[[], str | None] = lambda: None
    ) -> tuple[Result, ...]:
        """Return ``call(rank)`` of every rank, run at the same time.

        Raises what the first rank raised that was not merely woken by another's failure.

        Parameters
        ----------
        first_cause : function
            Asked again and again; ends the call for all ranks by the sentence that it returns.

        Raises
        ------
        StepError
            If a rank hangs, in this call or an earlier one.
        """
        if not self._work:
            return (self._alone(call),)
        if self._hung:
            raise StepError(f"{self._hung}. Its thread cannot be ended: end this process, and start again.")
        futures = [self._start(rank, call) for rank in range(len(self._work))]
        cause: str | None = None
        try:
            while concurrent.futures.wait(futures, timeout=_LOOK_S).not_done and cause is None:
                cause = first_cause()
        except BaseException:
            self._end(futures, "interrupted")
            raise
        if cause is not None:
            self._end(futures, cause)
            raise StepError(f"{cause}. Call pipe.reset() and optimizer.zero_grad() before the next step.")
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._hub.reset()
            raise min(errors, key=_is_consequence)
        return tuple(future.result() for future in futures)

    def close(self) -> None:
        """End the threads."""
        for work in self._work:
            work.put(None)

    def _alone(self, call: Callable[[int], Result]) -> Result:
        try:
            return call(0)
        except BaseException:
            self._hub.reset()
            raise

    def _start(self, rank: int, call: Callable[[int], Result]) -> "concurrent.futures.Future[Result]":
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(call(rank))
            except BaseException as error:
                self._hub.abort(f"rank {rank} stopped: {error}")
                future.set_exception(error)

        self._work[rank].put(run)
        return future

    def _end(self, futures: "Sequence[concurrent.futures.Future[Result]]", cause: str) -> None:
        """Wake the ranks that wait, and give the others a moment."""
        self._hub.abort(cause)
        if concurrent.futures.wait(futures, timeout=_WAKE_S).not_done:
            self._hung = cause
        else:
            self._hub.reset()


def _serve(work: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := work.get()) is not None:
        call()
        del call  # it holds what the call was given


def _is_consequence(error: BaseException) -> int:
    if isinstance(error, TransportError) or isinstance(error.__cause__, TransportError):
        return 2
    return 1 if isinstance(error, StepError) and error.__cause__ is None else 0
