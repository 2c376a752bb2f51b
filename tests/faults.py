"""Faults of ranks, played through with real processes: what breaks where, and what every rank then says."""

import atexit
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTS = (
    "raise in F",
    "raise in B",
    "raise in W",
    "raise in optimizer",
    "SIGKILL",
    "exit",
    "os._exit",
    "hang",
    "SIGSTOP",
    "slow x20",
    "out of memory",
    "wrong shape",
    "wrong plan",
    "broken plan file",
    "loader ends early",
    "Ctrl-C",
)
DEADLINE_S = 2.0
GRACE_S = 5.0
BAD_STEP, STEPS, MICRO_BATCHES = 2, 4, 4
_CASE_LIMIT_S = 90.0
_RECOVERS = ("slow x20",)
# What the first cause must name, beside the rank.
_CAUSES = {
    "raise in F": r"failed in F\d\.1 \(ValueError\): the forward broke",
    "raise in B": r"failed in B\d\.1 \(ValueError\): the backward broke",
    "raise in W": r"failed in B\d\.\d \(ValueError\): the weight gradient broke",
    "raise in optimizer": r"was ended between steps by ValueError: the optimizer broke",
    "SIGKILL": r"has ended without a word|gives no sign of life",
    "exit": r"gave up in F\d\.1 \(forward of stage \d, micro-batch 1\): SystemExit",
    "os._exit": r"has ended without a word|gives no sign of life",
    "hang": r"is stuck: it has been in F\d\.1 \(forward of stage \d, micro-batch 1\)",
    "SIGSTOP": r"gives no sign of life",
    "slow x20": r"",
    "out of memory": r"failed in F\d\.1 \(OutOfMemoryError\)",
    "wrong shape": r"failed in F\d\.1",
    "wrong plan": r"starts with another layout",
    "broken plan file": r"was ended .* by DocumentError",
    "loader ends early": r"has ended \(it left by itself\)",
    "Ctrl-C": r"gave up in F\d\.1 \(forward of stage \d, micro-batch 1\): KeyboardInterrupt",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault on one rank of a pipeline."""

    fault: str
    rank: int
    ranks: int
    schedule: str = "1f1b"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a case: per rank its exit code, when it ended after the fault, and its last sentence."""

    case: Case
    codes: tuple[int | None, ...]
    after_s: tuple[float, ...]
    outputs: tuple[str, ...]
    hung: bool

    @property
    def sentences(self) -> set[str]:
        """What the surviving ranks say is the first cause."""
        return {_sentence(text) for rank, text in enumerate(self.outputs) if rank != self.case.rank}

    @property
    def fault(self) -> str:
        """What is not as it must be; empty if all is."""
        case, survivors = self.case, [rank for rank in range(self.case.ranks) if rank != self.case.rank]
        if self.hung:
            return "hang"
        if case.fault in _RECOVERS:
            return "" if set(self.codes) == {0} else f"exit codes {self.codes}"
        if any(self.codes[rank] == 0 for rank in survivors):
            return f"exit codes {self.codes}"
        if len(self.sentences) != 1:
            return f"{len(self.sentences)} sentences"
        sentence = next(iter(self.sentences))
        if f"rank {case.rank} " not in sentence or not re.search(_CAUSES[case.fault], sentence):
            return f"said: {sentence}"
        if max(self.after_s[rank] for rank in survivors) > DEADLINE_S + GRACE_S:
            return f"took {max(self.after_s):.1f} s"
        return ""


def cases(ranks: int, schedule: str) -> tuple[Case, ...]:
    """Return every fault on every rank."""
    return tuple(Case(fault=f, rank=r, ranks=ranks, schedule=schedule) for f in FAULTS for r in range(ranks))


def play(listed: Iterable[Case], *, at_once: int) -> Iterator[Outcome]:
    """Yield the outcomes of cases as they end, several of which run side by side."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faulty_rank"])
    waiting, running = list(listed), []
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(_Run(waiting.pop(0), context))
        time.sleep(0.02)
        for run in [run for run in running if run.is_over()]:
            running.remove(run)
            yield run.outcome()


class _Run:
    """The processes of one case, with a store that outlives them, as torchrun's agent has it."""

    def __init__(self, case: Case, context: Any) -> None:
        import torch.distributed as dist

        from tests.faulty_rank import run

        self.case = case
        self._folder = tempfile.TemporaryDirectory(prefix="autopipe-fault-")
        folder = Path(self._folder.name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        self._processes = [
            context.Process(target=run, args=(case, rank, port, str(folder)), daemon=True) for rank in range(case.ranks)
        ]
        self._ends: dict[int, float] = {}
        self._start = time.time()
        self._hung = False
        for process in self._processes:
            process.start()

    def is_over(self) -> bool:
        for rank, process in enumerate(self._processes):
            if rank not in self._ends and process.exitcode is not None:
                self._ends[rank] = time.time()
        left = [rank for rank in range(self.case.ranks) if rank not in self._ends]
        if left == [self.case.rank] and self.case.fault == "SIGSTOP":
            # Nothing may be left behind: once it goes on, the stopped rank ends by itself.
            os.kill(self._processes[self.case.rank].pid or 0, signal.SIGCONT)
        if left and time.time() - self._start > _CASE_LIMIT_S:
            self._hung = True
            for rank in left:
                os.kill(self._processes[rank].pid or 0, signal.SIGABRT)  # it then prints where it is
                self._processes[rank].join(5.0)
                self._processes[rank].kill()
                self._processes[rank].join()
                self._ends[rank] = time.time()
        return not left or self._hung

    def outcome(self) -> Outcome:
        folder = Path(self._folder.name)
        mark = folder / "fault"
        begin = float(mark.read_text()) if mark.exists() else self._start
        outputs = tuple((folder / f"rank{rank}").read_text(errors="replace") for rank in range(self.case.ranks))
        result = Outcome(
            case=self.case,
            codes=tuple(process.exitcode for process in self._processes),
            after_s=tuple(self._ends[rank] - begin for rank in range(self.case.ranks)),
            outputs=outputs,
            hung=self._hung,
        )
        self._folder.cleanup()
        return result


def _sentence(output: str) -> str:
    """Return the first cause in the last words of a rank."""
    found = re.findall(r"(?:Error: |leaves\. )(.*?)(?:\. The ranks|\. Every rank stopped|: messages would)", output)
    return found[-1] if found else "(nothing) " + output[-200:]


def as_the_interpreter(code: Any) -> None:
    """End this forked process as a script ends after ``code()``: hooks, exit functions, exit code."""
    status = 0
    try:
        code()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
