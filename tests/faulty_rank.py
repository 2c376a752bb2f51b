"""One rank of a pipeline, of which a fault is played through."""

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import autopipe
from autopipe.executor.deadlines import Deadlines
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.named import make
from tests.faults import BAD_STEP, DEADLINE_S, MICRO_BATCHES, STEPS, Case, as_the_interpreter
from tests.reference import even_bounds

WIDTH, BATCH, VIRTUAL = 8, 8, {"1f1b": 1, "interleaved": 2}


class Trap(nn.Module):
    """Passes its input on, until the moment for which it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.fault = ""
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        if not self.fault:
            return y
        self.forwards += 1
        if self.forwards != BAD_STEP * MICRO_BATCHES + 2:  # micro-batch 1 of the third step
            return y
        return self.spring(y)

    def spring(self, y: Tensor) -> Tensor:
        fault = self.fault
        mark(Path(os.environ["FAULT_FOLDER"]))
        if fault == "raise in F":
            raise ValueError("the forward broke")
        if fault == "raise in B":
            y.register_hook(_raiser("the backward broke"))
        if fault == "raise in W":
            self.weight.register_hook(_raiser("the weight gradient broke"))
        if fault == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit":
            sys.exit(3)
        if fault == "os._exit":
            os._exit(7)
        if fault == "hang":
            time.sleep(1000)
        if fault == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "slow x20":
            time.sleep(0.2)
        if fault == "out of memory":
            raise torch.OutOfMemoryError("tried to allocate more than there is")
        if fault == "wrong shape":
            return y[:, :-1]
        if fault == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return y


def _raiser(sentence: str) -> Any:
    def hook(gradient: Tensor) -> None:
        raise ValueError(sentence)

    return hook


def mark(folder: Path) -> None:
    """Note when the fault began, if that has not been noted yet."""
    if not (folder / "fault").exists():
        (folder / "fault").write_text(str(time.time()))


def run(case: Case, rank: int, port: int, folder: str) -> None:
    """Be ``rank`` of a case, with everything that is said written to a file in ``folder``."""
    output = os.open(str(Path(folder) / f"rank{rank}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        FAULT_FOLDER=folder,
    )
    as_the_interpreter(lambda: train(case, rank, Path(folder)))


def train(case: Case, rank: int, folder: Path) -> None:
    """Train a few steps, with the fault on its rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    virtual = VIRTUAL[case.schedule]
    stages = case.ranks * virtual
    model = nn.Sequential(*(part for _ in range(stages) for part in (nn.Linear(WIDTH, WIDTH), Trap())))
    recording = record(model, (torch.randn(BATCH, WIDTH),))
    is_bad = rank == case.rank
    if is_bad and case.fault == "broken plan file":
        plan = folder / "plan.json"
        plan.write_text('{"format": "autopipe.plan", "version": 1, "stages": [')
        try:
            autopipe.pipeline(model, plan=plan, loss_fn=nn.functional.mse_loss)
        finally:
            mark(folder)  # it is read once the rank has joined the others, who may have yet to start
    bounds = even_bounds(len(recording.graph.layers), stages)
    if is_bad and case.fault == "wrong plan":
        mark(folder)
        bounds = (0, bounds[1] - 1, *bounds[2:])
    schedule = make(case.schedule, stages=case.ranks, micro_batches=MICRO_BATCHES, virtual=virtual)
    pipe = Pipeline(
        recording.module,
        recording.graph,
        Layout(
            bounds=bounds,
            stage_ranks=schedule.stage_ranks,
            schedule=case.schedule,
            micro_batches=MICRO_BATCHES,
            virtual_stages=virtual,
        ),
        loss_fn=nn.functional.mse_loss,
        deadlines=Deadlines.chosen(DEADLINE_S),
    )
    for trap in model[1::2]:
        trap.fault = case.fault if is_bad else ""
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.01)
    for step in range(STEPS):
        if is_bad and case.fault == "loader ends early" and step == BAD_STEP:
            mark(folder)
            return
        x, y = torch.randn(2, BATCH, WIDTH)
        pipe.step(x, target=y)
        if is_bad and case.fault == "raise in optimizer" and step == BAD_STEP:
            mark(folder)
            raise ValueError("the optimizer broke")
        optimizer.step()
        optimizer.zero_grad()
