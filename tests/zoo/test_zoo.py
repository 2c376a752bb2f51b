"""Thirty models and more, captured, judged, cut at planned and at random legal bounds, and trained."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autopipe.errors import CaptureError
from tests.zoo import hard_cases, training
from tests.zoo.case import Case
from tests.zoo.judge import RIGHT, judge
from tests.zoo.planning import planned_bounds

pytest.importorskip("transformers")
from tests.zoo import hugging_face

ARCHITECTURES = (
    "llama", "qwen3", "gemma2", "gpt2", "gpt_neox", "bloom", "falcon", "mamba", "mixtral", "qwen2_moe", "bert",
    "recurrent_gemma", "albert", "deberta_v2", "t5", "bart", "vit", "swin", "convnext", "resnet", "segformer",
    "wav2vec2", "whisper", "clip", "siglip",
)  # fmt: skip

FROM_LIBRARY = [case for case in hugging_face.CASES if case.name in ARCHITECTURES]
EVERY_CASE = [*FROM_LIBRARY, *hard_cases.CASES]


def named(case: Case) -> str:
    return case.name


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_zoo_holds_what_it_should() -> None:
    assert len(FROM_LIBRARY) == len(ARCHITECTURES)
    assert len(EVERY_CASE) >= 30
    assert len(hugging_face.CASES) >= 40
    assert len(hard_cases.CASES) >= 25
    names = [case.name for case in (*hugging_face.CASES, *hard_cases.CASES)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", FROM_LIBRARY, ids=named)
def test_an_architecture_is_captured_at_any_batch_size_in_both_modes(case: Case) -> None:
    verdict = judge(case)
    assert verdict.is_sound, verdict.detail
    assert verdict.capture in RIGHT, verdict.detail
    assert verdict.mode in RIGHT, verdict.detail
    assert verdict.batch in RIGHT, verdict.detail


@pytest.mark.parametrize("case", hard_cases.CASES, ids=named)
def test_a_hard_case_is_captured_right_or_refused_with_a_sentence(case: Case) -> None:
    verdict = judge(case)
    assert verdict.is_sound, verdict.detail


def test_a_value_that_is_read_at_the_root_is_refused_with_its_place() -> None:
    case = next(case for case in hard_cases.CASES if case.name == "value_at_root")
    with pytest.raises(CaptureError) as caught:
        training.recorded(case)
    for part in ("ReadsAtRoot", "hard_cases.py:", "y.mean() > 0", "values"):
        assert part in str(caught.value)


@pytest.mark.parametrize("case", EVERY_CASE, ids=named)
def test_capture_leaves_no_trace(case: Case) -> None:
    model = training.built(case)
    args, kwargs = case.draw(2)
    model(*copy.deepcopy(args), **copy.deepcopy(kwargs))  # What a first call sets up is there for good.
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    attributes = [sorted(vars(module)) for module in model.modules()]
    random_state = torch.get_rng_state()
    with contextlib.suppress(CaptureError):  # A refused model is left as it was too.
        training.record(model, args, kwargs)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [sorted(vars(module)) for module in model.modules()] == attributes
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("choose", [planned_bounds, training.random_bounds], ids=["planned", "random"])
@pytest.mark.parametrize("case", EVERY_CASE, ids=named)
def test_stages_train_as_the_plain_model_does(case: Case, choose: Callable[..., tuple[int, ...] | None]) -> None:
    try:
        _, recording = training.recorded(case)
    except CaptureError:
        assert case in hard_cases.CASES
        return
    for stages in (2, 3, 4):
        bounds = choose(recording.graph, stages)
        if bounds is not None:
            assert training.compare(case, bounds) == [], bounds
