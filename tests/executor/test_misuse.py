"""Calls that a fresh user tries: each ends in a sentence that says what to write instead."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autopipe
from autopipe.errors import InputError, StepError
from autopipe.executor.misuse import misuse
from tests.executor.pipes import thread_pipe


class Labelled(nn.Module):
    """Takes its labels and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.mse_loss(self.second(self.first(x).relu()), labels)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.parametrize("call", [lambda p: p(torch.ones(4, 4)), lambda p: p.to("cpu"), lambda p: p.cuda()])
def test_what_a_model_can_and_a_pipeline_cannot_is_a_sentence(call: Any) -> None:
    pipe = thread_pipe(chain(), (torch.randn(4, 4),), stages=2, micro_batches=2)
    with pytest.raises(InputError, match=r"pipe\.predict\(x\)|devices="):
        call(pipe)
    pipe.close()


def test_zero_grad_forgets_gradients_or_makes_them_zeros() -> None:
    x = torch.randn(4, 4)
    pipe = thread_pipe(chain(), (x,), stages=2, micro_batches=2, loss_fn=functional.mse_loss)
    pipe.step(x, target=x)
    pipe.zero_grad(set_to_none=False)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in pipe.parameters())
    pipe.zero_grad()
    assert all(parameter.grad is None for parameter in pipe.parameters())
    pipe.close()


@pytest.mark.parametrize(
    ("args", "loss_fn"), [((1, 1), functional.mse_loss), ((1,), nn.CrossEntropyLoss()), ((1,), functional.mse_loss)]
)
def test_a_target_that_was_not_passed_by_name_is_asked_for(args: tuple[int, ...], loss_fn: Any) -> None:
    x = torch.randn(4, 4)
    pipe = thread_pipe(chain(), (x,), stages=2, micro_batches=2, loss_fn=loss_fn)
    with pytest.raises(StepError, match=r"pipe\.step\(x, target=y\)") as caught:
        pipe.step(*(x for _ in args))
    assert isinstance(caught.value.__cause__, InputError)
    pipe.close()


def test_a_prediction_without_the_recorded_labels_says_which_are_missing() -> None:
    x = torch.randn(4, 4)
    pipe = thread_pipe(Labelled(), (x, x), stages=2, micro_batches=2)
    words = r"recorded with the arguments x, labels, and this call lacks labels.*F0\.0 is the forward of micro-batch 0"
    with pytest.raises(StepError, match=words):
        pipe.predict(x=x)
    pipe.close()


def test_arguments_that_fit_are_no_misuse_and_others_are_named() -> None:
    model, x = Labelled(), torch.ones(1)
    assert misuse(model, (x,), {"labels": x}) is None
    assert "gives mask beside it" in str(misuse(model, (x, x), {"mask": x}))
    assert "3 arguments came without a name" in str(misuse(model, (x, x, x), {}))


def test_a_plan_in_the_place_of_the_example_is_asked_for_by_name() -> None:
    with pytest.raises(InputError, match="plan="):
        autopipe.pipeline(chain(), "plan.json", ranks=2)
    with pytest.raises(InputError, match="a plan has its micro-batches"):
        autopipe.pipeline(chain(), plan="plan.json", micro_batch_size=2, ranks=2)


def test_an_example_comes_by_place_wishes_are_kept_and_the_plan_saves_itself(tmp_path: Path) -> None:
    x = torch.randn(8, 4)
    pipe = autopipe.pipeline(
        chain(),
        (x,),
        target=x,
        loss_fn=functional.mse_loss,
        micro_batch_size=2,
        schedule="gpipe",
        ranks=2,
        budget_s=0.1,
    )
    assert (pipe.plan.micro_batches, pipe.plan.schedule) == (4, "gpipe")
    pipe.plan.save(tmp_path / "plan.json")
    assert autopipe.Plan.load(tmp_path / "plan.json") == pipe.plan
    with pytest.raises(autopipe.DocumentError, match="not a valid"):
        autopipe.Profile.load(tmp_path / "plan.json")
    pipe.close()
