"""Compare predicted with counted memory: of the whole model, and of every stage of an uneven cut alone.

Predicted by the prefix rule; counted by a ledger of living storages while one step runs.

    OMP_NUM_THREADS=1 python docs/benchmarks/profile/memory.py
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.costs.memory import IntervalMemory, interval_memory
from autopipe.costs.size import at_size
from autopipe.costs.time import interval_times
from autopipe.profiler import measure
from autopipe.profiler.memory import StorageLedger
from autopipe.recorder import Recording, record
from autopipe.stages.split import split

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.models import CNN, GPT, token_loss


class Subject(NamedTuple):
    """A model with one batch and its loss."""

    model: nn.Module
    inputs: Tensor
    target: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


def gpt() -> Subject:
    ids = torch.randint(0, 512, (8, 129))
    return Subject(GPT(512, 256, 6, 128, tied=False), ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), token_loss)


def cnn() -> Subject:
    inputs, target = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return Subject(CNN(32, 6), inputs, target, functional.cross_entropy)


def mlp() -> Subject:
    model = nn.Sequential(*(module for _ in range(12) for module in (nn.Linear(256, 256), nn.ReLU())))
    return Subject(model, torch.randn(64, 256), torch.randint(0, 256, (64,)), functional.cross_entropy)


SUBJECTS = {"GPT": gpt, "CNN": cnn, "MLP of small operators": mlp}


def compare_memory(name: str, subject: Subject, recording: Recording) -> None:
    """Print predicted and counted bytes of the whole model and of every stage of an uneven cut."""
    profile = measure(
        subject.model,
        (subject.inputs,),
        target=subject.target,
        loss_fn=subject.loss,
        micro_batches=(len(subject.inputs),),
        budget_s=0,
        recording=recording,
    )
    sized = at_size(profile, len(subject.inputs))
    predicted = interval_memory(sized, interval_times(sized))
    for parameter in subject.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    layers = len(profile.layers)
    with StorageLedger() as ledger:
        loss = subject.loss(subject.model(subject.inputs), subject.target)
        live = ledger.current_bytes
        loss.backward()
        peak = ledger.peak_bytes
    saved = int(predicted.saved[0, layers])
    print(f"| {name} | whole, saved | {saved} | {live} | {100 * (saved / live - 1):+.2f} % |")
    _row(name, "whole, peak", predicted, 0, layers, peak)
    for begin, end, counted in count_stages(subject, recording, (0, layers // 4, layers - 2, layers)):
        _row(name, f"layers {begin} to {end - 1}, peak", predicted, begin, end, counted)


def _row(name: str, what: str, predicted: IntervalMemory, begin: int, end: int, counted: int) -> None:
    peak = int(predicted.peak[begin, end])
    print(f"| {name} | {what} | {peak} | {counted} | {100 * (peak / counted - 1):+.2f} % |")


def count_stages(subject: Subject, recording: Recording, bounds: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, counted peak) of every stage, run alone on received values and gradients.

    Inputs that were received are counted, and so are the gradients of outputs, whose buffers the executor frees when
    the backward of the stage is over.
    """
    values: dict[str, Tensor] = {}
    for stage in split(recording.module, recording.graph, bounds):
        args = [subject.inputs]
        if stage.index > 0:
            args = [values[name].requires_grad_(values[name].is_floating_point()) for name in stage.inputs]
        received = sum(tensor.untyped_storage().nbytes() for tensor in args) if stage.index > 0 else 0
        outputs = stage.module(*(tensor.view_as(tensor) for tensor in args))
        if not stage.is_last:
            values.update(zip(stage.outputs, (output.detach().clone() for output in outputs), strict=True))
        del outputs
        with StorageLedger() as ledger:
            result = stage.module(*(tensor.view_as(tensor) for tensor in args))
            made = (subject.loss(result, subject.target),) if stage.is_last else result
            end = Handed.apply([torch.ones_like(output) for output in made], *made)
            del result, made
            end.backward(torch.empty_like(end))
        yield stage.begin, stage.end, ledger.peak_bytes + received


class Handed(torch.autograd.Function):
    """Ends a stage; its backward hands in the gradients of what the stage made, which wait until it is over."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.gradients)


def main() -> None:
    torch.manual_seed(0)
    print("| model | what | predicted bytes | counted bytes | error |\n|---|---|---|---|---|")
    for name, build in SUBJECTS.items():
        subject = build()
        compare_memory(name, subject, record(subject.model, (subject.inputs,)))


if __name__ == "__main__":
    main()
