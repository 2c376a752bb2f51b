import pytest
import torch
from torch import Tensor, nn

from autopipe.recorder import record
from autopipe.recorder.glue import modes_kept


class Fails(nn.Linear):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise ValueError("as asked")
        return super().forward(x)


class Region(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = Fails(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad() if self.kind == "no_grad" else torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return self.last(y.float())


@pytest.mark.parametrize("kind", ["no_grad", "autocast"])
def test_a_run_that_raises_in_a_region_leaves_grad_mode_and_autocast_as_they_were(kind: str) -> None:
    model = Region(kind)
    module = record(model, (torch.randn(2, 4),)).module
    model.linear.fails = True
    with pytest.raises(ValueError, match="as asked"):
        module(torch.randn(2, 4))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_the_mode_around_a_run_that_raises_is_kept() -> None:
    model = Region("autocast")
    module = record(model, (torch.randn(2, 4),)).module
    model.linear.fails = True
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        with pytest.raises(ValueError, match="as asked"):
            module(torch.randn(2, 4))
        assert not torch.is_grad_enabled()
        assert torch.get_autocast_dtype("cpu") is torch.float16
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_what_a_run_that_ends_well_changes_stays_changed() -> None:
    before = torch.is_grad_enabled()
    try:
        with modes_kept():
            torch.set_grad_enabled(not before)
        assert torch.is_grad_enabled() is not before
    finally:
        torch.set_grad_enabled(before)
