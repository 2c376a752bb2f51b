"""Losses by name."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from autopipe.cli.loss import cross_entropy, output, resolve
from autopipe.errors import InputError


def test_classes_are_last_in_language_models_and_second_otherwise() -> None:
    text, classes = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    assert torch.equal(cross_entropy(text, classes), functional.cross_entropy(text.flatten(0, 1), classes.flatten()))
    image, labels = torch.randn(2, 7, 3, 3), torch.randint(7, (2, 3, 3))
    assert torch.equal(cross_entropy(image, labels), functional.cross_entropy(image, labels))


def test_logits_are_found_in_an_output_object() -> None:
    logits, labels = torch.randn(4, 3), torch.randint(3, (4,))
    expected = functional.cross_entropy(logits, labels)
    for result in (SimpleNamespace(logits=logits), {"logits": logits}, (torch.arange(3), logits)):
        assert torch.equal(cross_entropy(result, labels), expected)


def test_output_is_the_loss_of_the_model_itself() -> None:
    assert output(SimpleNamespace(loss=torch.tensor(3.0))) == 3
    with pytest.raises(InputError, match="gives a tensor of shape"):
        output(torch.ones(2, 2))


def test_a_function_of_the_user_is_found_by_its_place() -> None:
    assert resolve("torch.nn.functional:l1_loss") is functional.l1_loss
    assert resolve(None) is None


@pytest.mark.parametrize(
    ("name", "words"), [("crossentropy", "choose cross_entropy, mse, output"), ("torch:pi", "is a float")]
)
def test_what_is_no_loss_is_refused(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        resolve(name)
