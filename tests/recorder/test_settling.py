import pytest
import torch
from torch import nn

from autopipe.errors import InputError
from autopipe.recorder import record
from autopipe.recorder.example import bind
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.settling import settle, terms_of
from tests.models import GPT
from tests.recorder import awkward


def test_batch_size_is_not_burned_in_wherever_it_is_computed_with() -> None:
    model = awkward.Sizes()
    module = record(model, (torch.randn(3, 5, 4),)).module
    for batch in (1, 3, 8):
        x = torch.randn(batch, 5, 4)
        assert all(map(torch.equal, module(x), model(x)))


def test_batch_size_that_shapes_the_program_stays_and_is_checked() -> None:
    recording = record(awkward.LoopsOverSamples(), (torch.randn(3, 4),))
    assert not recording.graph.batch_is_free
    recording.module(torch.randn(3, 4))
    with pytest.raises(InputError, match="size 5 in dimension 0"):
        recording.module(torch.randn(5, 4))


def test_size_that_is_no_multiple_of_the_batch_size_stays_and_is_checked() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.linear(x), torch.zeros(x.shape[0] ** 2)

    assert not record(Square(), (torch.randn(3, 4),)).graph.batch_is_free


def test_mode_stays_a_live_switch() -> None:
    model = nn.Sequential(awkward.DropsOut(), awkward.DropsOut())
    recording = record(model, (torch.randn(8, 4),))
    x = torch.randn(8, 4)
    recording.module.eval()
    assert not model[0].training
    assert torch.equal(recording.module(x), model(x))
    recording.module.train()
    torch.manual_seed(1)
    noisy = recording.module(x)
    torch.manual_seed(1)
    assert torch.equal(noisy, model(x))
    model[1].eval()
    torch.manual_seed(1)
    assert not torch.equal(recording.module(x), noisy)


def test_module_that_does_more_in_training_becomes_a_leaf() -> None:
    model = nn.Sequential(nn.Linear(4, 4), awkward.NoisyInTraining(), nn.Linear(4, 4))
    recording = record(model, (torch.randn(3, 4),))
    assert list(recording.demoted) == ["1"]
    assert "in the other mode" in recording.demoted["1"]


@pytest.mark.parametrize("training", [True, False])
def test_mode_that_shapes_the_model_s_own_program_stays_and_is_checked(training: bool) -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.extra = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> object:
            x = self.first(x)
            return (self.last(x), self.extra(x)) if self.training else self.last(x)

    model = TwoHeads().train(training)
    module = record(model, (torch.randn(3, 4),)).module
    module(torch.randn(5, 4))
    module.train(not training)
    with pytest.raises(InputError, match=f"`training` of the model is {not training}"):
        module(torch.randn(5, 4))
    module.train(training)
    module(torch.randn(5, 4))


def test_part_in_evaluation_mode_stays_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[1].eval()
    module = record(model, (torch.randn(3, 4),)).module
    assert not model[1].training
    module(torch.randn(3, 4))
    assert model[1].num_batches_tracked == 0


def test_recording_takes_three_forward_passes() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.calls = [0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls[0] += 1
            return self.linear(x)

    model = Calls()
    settle(terms_of(model, bind(model, (torch.randn(2, 4),), {}), Leaves()))
    assert model.calls == [3]


@pytest.mark.parametrize("length", [2, 9, 16])
def test_length_of_sequences_is_not_burned_in(length: int) -> None:
    model = GPT(blocks=1)
    module = record(model, (torch.randint(0, 97, (2, 12)),)).module
    ids = torch.randint(0, 97, (3, length))
    assert torch.equal(module(ids), model(ids))


def test_length_that_shapes_the_program_stays_and_is_checked() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 4)
            self.cell = nn.GRUCell(4, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            state = self.embed(ids[:, 0])
            for step in range(1, ids.shape[1]):
                state = self.cell(self.embed(ids[:, step]), state)
            return state

    recording = record(Steps(), (torch.randint(0, 9, (3, 5)),))
    assert recording.demoted == {}
    assert recording.graph.batch_is_free
    recording.module(torch.randint(0, 9, (4, 5)))
    with pytest.raises(InputError, match="size 6 in dimension 1"):
        recording.module(torch.randint(0, 9, (3, 6)))
