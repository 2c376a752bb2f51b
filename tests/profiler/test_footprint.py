import pytest
import torch
from torch import Tensor, nn

from autopipe.profiler.footprint import Footprint, measure_footprint
from autopipe.profiler.layers import Chain, Example, pieces_of
from autopipe.profiler.memory import StorageLedger
from autopipe.recorder import record
from tests.models import JOBS, Job


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    # Not functional.mse_loss, whose scalar keeps a buffer of the size of its input alive on the CPU.
    return ((output - target) ** 2).mean()


def loss_of(job: Job) -> object:
    return squared_error if job.loss is nn.functional.mse_loss else job.loss


def footprint_of(model: nn.Module, inputs: Tensor, target: Tensor | None, loss: object) -> Footprint:
    recording = record(model, (inputs,))
    _allocate_gradients(model)
    chain = Chain(pieces_of(recording.module, recording.graph), loss)
    return measure_footprint(chain, Example((inputs,), {}, target), model)


def counted(model: nn.Module, inputs: Tensor, target: Tensor, loss: object) -> tuple[int, int]:
    """Return the live bytes after the forward of the unsplit model, and the peak of its step."""
    _allocate_gradients(model)
    with StorageLedger() as ledger:
        value = loss(model(inputs), target)
        live = ledger.current_bytes
        value.backward()
    return live, ledger.peak_bytes


def _allocate_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def saved_bytes(found: Footprint) -> tuple[int, ...]:
    return tuple(one.saved_bytes for one in found.holdings)


def carried(found: Footprint) -> set[str]:
    """Return the values that a later piece saves and their makers do not."""
    return found.saved_at.keys() - found.maker_saves


def prefix_peak(found: Footprint, maker: dict[str, int], last_reader: dict[str, int]) -> int:
    """Return the peak of the whole model as one stage, by the prefix rule."""
    saved = peak = 0
    for index, own in enumerate(found.holdings):
        saved += own.saved_bytes
        saved += sum(found.storage_bytes[name] for name in carried(found) if found.saved_at[name] == index)
        waiting = sum(size for name, size in found.gradient_bytes.items() if maker[name] < index < last_reader[name])
        climbs = (own.transient_bytes + waiting, own.forward_transient_bytes)
        peak = max(peak, saved + max(climbs))
    return peak


@pytest.mark.parametrize("name", JOBS)
def test_saved_bytes_are_the_live_bytes_after_the_forward(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(8)
    found = footprint_of(model, inputs, target, job.loss)
    live, _ = counted(model, inputs, target, job.loss)
    saved = sum(one.saved_bytes for one in found.holdings)
    assert saved + sum(found.storage_bytes[name] for name in carried(found)) == live


@pytest.mark.parametrize("name", JOBS)
def test_the_prefix_rule_gives_the_counted_peak(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(8)
    found = footprint_of(model, inputs, target, loss_of(job))
    pieces = pieces_of(*_parts(model, inputs))
    maker = {name: index for index, piece in enumerate(pieces) for name in piece.outputs}
    last_reader = {name: index for index, piece in enumerate(pieces) for name in piece.inputs}
    _, peak = counted(model, inputs, target, loss_of(job))
    assert prefix_peak(found, maker, last_reader) == pytest.approx(peak, rel=0.02)


def _parts(model: nn.Module, inputs: Tensor) -> tuple[object, object]:
    recording = record(model, (inputs,))
    return recording.module, recording.graph


class Doubled(torch.autograd.Function):
    """Keeps a tensor where saved-tensor hooks do not see it."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.kept = x * 2
        return ctx.kept.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 2


class KeepsUnseen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x)


def test_what_a_custom_function_keeps_unseen_is_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), KeepsUnseen())
    found = footprint_of(model, torch.randn(16, 4), None, lambda output, _: output.sum())
    assert sum(one.saved_bytes for one in found.holdings[:-1]) == 16 * 4 * 4


def test_a_value_is_booked_to_the_layer_that_saves_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(2, 3), nn.Softmax(dim=1))
    found = footprint_of(model, torch.randn(16, 4), None, lambda output, _: output.sum())
    # Every Linear saves its input: the first the model's, which counts for nobody, the others what the one before
    # has made. Softmax, one layer with the last Linear, saves its own result; the sum nothing but its four bytes.
    assert saved_bytes(found) == (0, 0, 16 * 3 * 4, 4)
    assert sorted((at, found.value_bytes[name]) for name, at in found.saved_at.items()) == [
        (1, 16 * 8 * 4),
        (2, 16 * 2 * 4),
    ]


def test_loss_and_last_layer_share_the_output_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    found = footprint_of(model, torch.randn(16, 4), None, lambda output, _: output.exp().sum())
    # exp saves its result, not the output.
    assert saved_bytes(found) == (0, 16 * 4 * 4 + 4)
    found = footprint_of(model, torch.randn(16, 4), None, lambda output, _: output.square().sum())
    assert saved_bytes(found) == (0, 16 * 4 * 4 + 4)


def test_at_the_end_of_a_stage_the_received_gradient_waits_while_the_layer_climbs() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    first = footprint_of(model, torch.randn(8, 32), None, lambda output, _: output.sum()).holdings[0]
    received, weight, bias = 8 * 32 * 4, 32 * 32 * 4, 32 * 4
    # When the gradients of the Linear come, that of its result stands where the result was that ReLU had saved, and
    # the received one is used up.
    assert first.transient_bytes == weight + bias
    assert first.ending_transient_bytes == received + weight + bias
