import warnings

import pytest
import torch
from torch import Tensor, nn

from autopipe.errors import CaptureError, InputError
from autopipe.recorder import rebuild, record


class Validates(nn.Module):
    """Reads values at its root to ``raise``, to warn, to assert or (``kind`` "uses") to compute with."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(9, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        if self.kind == "raises":
            if ids.max() >= 9:
                raise ValueError(f"{ids.max()} is no index")
        elif self.kind == "raises for a number":
            if ids.max().item() >= 9 or len(ids) < 1:
                raise ValueError("no index")
        elif self.kind == "else raises":
            if not (ids < 9).all():
                raise ValueError("no index")
        elif self.kind == "asserts":
            assert ids.max() < 9, "no index"
        elif self.kind == "asserts in a branch":
            if (ids >= 9).any():
                torch._assert(False, "no index")
        elif self.kind == "samples":
            # The distribution looks at its parameters' values to refuse those that are none.
            return self.last(torch.distributions.Normal(self.embed(ids), 1.0).mean)
        elif self.kind == "warns":
            if (ids == 0).any():
                warnings.warn("padding", stacklevel=2)
        elif self.kind == "keeps":
            if (highest := ids.max().item()) >= 9:
                raise ValueError(f"{highest} is no index")
        elif self.kind == "returns":
            if ids.max() < 0:
                return self.embed(ids)
        elif self.kind == "counts":
            return self.last(self.embed(ids[(ids > 4).nonzero()[:, 0]])).sum() / (ids > 4).nonzero().shape[0]
        return self.last(self.embed(ids))


def sample(*values: int) -> Tensor:
    return torch.tensor(values)


@pytest.mark.filterwarnings("ignore:padding")
@pytest.mark.parametrize(
    "kind", ["raises", "raises for a number", "else raises", "asserts", "asserts in a branch", "samples", "warns"]
)
def test_values_read_to_raise_or_warn_shape_no_graph(kind: str) -> None:
    model = Validates(kind)
    recording = record(model, (sample(1, 2, 0),))
    assert recording.graph.batch_is_free
    ids = sample(8, 3, 1, 0)
    assert torch.equal(rebuild(model, recording.graph)(ids), model(ids))


@pytest.mark.parametrize("kind", ["raises", "else raises", "asserts"])
def test_condition_that_would_raise_is_still_checked(kind: str) -> None:
    module = record(Validates(kind), (sample(1, 2, 0),)).module
    with pytest.raises(InputError, match=r"reads at .*test_validation.py:\d+ is"):
        module(sample(9, 0))


@pytest.mark.parametrize("kind", ["keeps", "returns"])
def test_value_that_decides_more_is_refused_with_the_ways_out(kind: str) -> None:
    with pytest.raises(CaptureError, match=r"record with specialise=True"):
        record(Validates(kind), (sample(1, 2, 0),))


@pytest.mark.parametrize("kind", ["keeps", "returns", "counts"])
def test_specialised_graph_holds_for_the_values_of_the_example_and_checks_them(kind: str) -> None:
    model = Validates(kind)
    recording = record(model, (sample(1, 7, 0),), specialise=True)
    ids = sample(0, 7, 1)
    module = rebuild(model, recording.graph)
    assert torch.allclose(module(ids), model(ids))
    with pytest.raises(InputError):
        module(sample(-1, -1, -1) if kind == "returns" else sample(7, 8, 5))
