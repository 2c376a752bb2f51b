"""Recompute: tables against rules written out, and predicted against counted bytes of real models."""

from collections.abc import Collection

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autopipe.costs.memory import interval_memory
from autopipe.costs.recompute import can_recompute, recomputing
from autopipe.costs.size import SizedProfile, at_size
from autopipe.costs.time import interval_times
from autopipe.documents.profile import ProfiledValue
from autopipe.errors import InputError
from autopipe.profiler import measure
from autopipe.profiler.layers import Piece, pieces_of
from autopipe.profiler.memory import StorageLedger
from autopipe.recorder import record
from tests.models import JOBS
from tests.profiler.test_footprint import loss_of
from tests.profiles import cost, layer, profile


def recomputable(**figures: int):
    return cost(recompute_ns=7, saved_recompute_bytes=1, transient_recompute_bytes=90, **figures)


def sized_chain(*costs, saved_at: int | None = 1, producer_saves: bool = False) -> SizedProfile:
    value = ProfiledValue(
        name="v",
        producer=0,
        consumers=(1,),
        requires_grad=True,
        bytes=(8,),
        saved_at=saved_at,
        producer_saves=producer_saves,
    )
    return at_size(profile([layer(str(index), [one]) for index, one in enumerate(costs)], [value]), 1)


def test_a_layer_that_recomputes_takes_its_forward_longer_and_holds_less_until_then():
    sized = recomputing(sized_chain(recomputable(saved_bytes=50, transient_bytes=30), cost(saved_bytes=5)), {0})
    times = interval_times(sized)
    memory = interval_memory(sized, times)
    assert (times.forward_ns[0, 1], times.backward_ns[0, 1]) == (10, 20 + 7)
    assert (memory.saved[0, 1], memory.peak[0, 1]) == (1, 1 + 90)
    # The second layer saves what the first made.
    assert memory.saved[0, 2] == 1 + 8 + 5


def test_without_a_measured_peak_it_is_what_is_saved_again_and_the_transient():
    one = cost(recompute_ns=7, saved_recompute_bytes=1, saved_bytes=50, transient_bytes=30)
    sized = recomputing(sized_chain(one, cost()), {0})
    assert interval_memory(sized, interval_times(sized)).peak[0, 1] == 1 + 50 + 30


def test_a_value_is_kept_by_a_reader_that_recomputes_if_nobody_else_does():
    chain = sized_chain(cost(), recomputable(), saved_at=None)
    assert interval_memory(chain, interval_times(chain)).saved[0, 2] == 0
    again = recomputing(chain, {1})
    assert interval_memory(again, interval_times(again)).saved[0, 2] == 8 + 1


def test_a_value_that_its_producer_saved_is_kept_by_its_reader_once_the_producer_recomputes():
    chain = sized_chain(recomputable(saved_bytes=8), cost(), producer_saves=True)
    again = recomputing(chain, {0})
    assert interval_memory(chain, interval_times(chain)).saved[0, 2] == 8
    assert interval_memory(again, interval_times(again)).saved[0, 2] == 1 + 8


def test_a_layer_without_a_measured_recompute_is_refused_by_name():
    with pytest.raises(InputError, match=r"layer 1 \(1\) cannot recompute"):
        recomputing(sized_chain(cost(), cost()), {1})


def sized_profile(name: str, samples: int) -> SizedProfile:
    job = JOBS[name]
    torch.manual_seed(0)
    inputs, target = job.draw(samples)
    found = measure(job.build(), (inputs,), target=target, loss_fn=loss_of(job), micro_batches=(samples,), budget_s=0)
    return at_size(found, samples)


SIZED: dict[str, SizedProfile] = {}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("share", ["all", "every second", "the first half"])
def test_predicted_bytes_are_those_counted_while_layers_recompute(name, share):
    sized = SIZED.setdefault(name, sized_profile(name, 8))
    able = [index for index, one in enumerate(sized.costs) if can_recompute(one)]
    chosen = {"all": able, "every second": able[::2], "the first half": able[: len(able) // 2]}[share]
    layers = len(sized.costs)
    assert len(able) >= layers - 1
    again = recomputing(sized, chosen)
    memory = interval_memory(again, interval_times(again))
    live, peak = counted(name, chosen, 8)
    assert memory.saved[0, layers] == live
    assert memory.peak[0, layers] == pytest.approx(peak, rel=0.02)
    # One ReLU less saves nothing where the next layer saves its input anyway.
    assert memory.saved[0, layers] <= interval_memory(sized, interval_times(sized)).saved[0, layers]


def counted(name: str, chosen: Collection[int], samples: int) -> tuple[int, int]:
    """Return live bytes after the forward and the peak of the step, of a model whose ``chosen`` layers recompute."""
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(samples)
    recording = record(model, (inputs,))
    pieces = pieces_of(recording.module, recording.graph)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with StorageLedger() as ledger:
        loss = loss_of(job)(run(pieces, inputs, chosen), target)
        live = ledger.current_bytes
        loss.backward()
    return live, ledger.peak_bytes


def run(pieces: tuple[Piece, ...], inputs: Tensor, chosen: Collection[int]) -> Tensor:
    values: dict[str, Tensor] = {}
    result = None
    for index, piece in enumerate(pieces):
        given = (inputs,) if index == 0 else tuple(values[name] for name in piece.inputs)
        for name in piece.released:
            del values[name]
        if piece.begin in chosen:
            result = checkpoint(piece.module, *given, use_reentrant=False)
        else:
            result = piece.module(*given)
        del given
        if index < len(pieces) - 1:
            values.update(zip(piece.outputs, result, strict=True))
    return result
