"""Micro-batches with unequally many valid targets train as the mean over all valid targets does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.errors import InputError, StepError
from tests.executor.pipes import thread_pipe, twins
from tests.models import GPT, mlp, token_loss
from tests.reference import differences

IGNORED = -100
BATCH = 8


def untied() -> nn.Module:
    return GPT(tied=False)


def draw() -> tuple[Tensor, Tensor]:
    """Return tokens and labels: two of four micro-batches are masked in part, one is as a whole."""
    ids = torch.randint(0, 97, (BATCH, 16))
    labels = torch.randint(0, 97, (BATCH, 16))
    labels[0, 3:] = IGNORED
    labels[2:4] = IGNORED
    labels[5, ::2] = IGNORED
    return ids, labels


def plain_losses(model: nn.Module, ids: Tensor, labels: Tensor, micro_batches: int, scale: float = 1.0) -> Tensor:
    """Train on the mean over all valid tokens, micro-batch by micro-batch, and return it."""
    valid = [int((part != IGNORED).sum()) for part in labels.chunk(micro_batches)]
    total = torch.zeros(())
    for tokens, wanted, count in zip(ids.chunk(micro_batches), labels.chunk(micro_batches), valid, strict=True):
        if count:
            loss = token_loss(model(tokens), wanted) * (count / sum(valid))
            (loss * scale).backward()
            total = total + loss.detach()
    return total


@pytest.mark.case(10)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_ignored_labels_do_not_count(stages: int, schedule: str) -> None:
    model, plain = twins(untied)
    ids, labels = draw()
    pipe = thread_pipe(model, (ids,), stages=stages, micro_batches=4, loss_fn=token_loss, schedule=schedule)
    for _ in range(3):
        ids, labels = draw()
        loss = pipe.step(ids, target=labels)
        assert torch.equal(loss, plain_losses(plain, ids, labels, 4))
        assert torch.allclose(loss, token_loss(plain(ids), labels), rtol=1e-5)
    assert differences(model, plain, set()) == []
    ids, labels = draw()
    assert torch.allclose(pipe.evaluate(ids, target=labels), token_loss(plain(ids), labels), rtol=1e-5)
    pipe.close()


@pytest.mark.case(10)
def test_gradients_are_those_of_the_plain_models_mean_over_valid_tokens() -> None:
    model, plain = twins(untied)
    ids, labels = draw()
    pipe = thread_pipe(model, (ids,), stages=2, micro_batches=4, loss_fn=token_loss)
    pipe.step(ids, target=labels)
    token_loss(plain(ids), labels).backward()
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    pipe.close()


def test_a_mini_batch_without_any_valid_label_adds_nothing() -> None:
    model, _ = twins(untied)
    ids, labels = draw()
    pipe = thread_pipe(model, (ids,), stages=2, micro_batches=4, loss_fn=token_loss)
    pipe.step(ids, target=labels)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    assert pipe.step(ids, target=torch.full_like(labels, IGNORED)) == 0
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True))
    pipe.close()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_of_classes_and_another_ignored_label_count_as_the_loss_counts_them(smoothing: float) -> None:
    weight = torch.rand(97) + 0.5

    def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
        flat = logits.flatten(0, 1), target.flatten()
        return functional.cross_entropy(*flat, weight=weight, ignore_index=0, label_smoothing=smoothing)

    model, plain = twins(untied)
    ids, labels = draw()
    labels[labels == IGNORED] = 0
    pipe = thread_pipe(model, (ids,), stages=2, micro_batches=4, loss_fn=loss_fn)
    loss, wanted = pipe.step(ids, target=labels), loss_fn(plain(ids), labels)
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-5)
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    pipe.close()


def masked_mean(output: Tensor, target: dict[str, Tensor]) -> Tensor:
    errors = (output - target["wanted"]).pow(2).mean(1)
    return (errors * target["counts"]).sum() / target["counts"].sum()


@pytest.mark.case(10)
def test_given_weights_make_a_loss_of_ones_own_exact() -> None:
    """Case 10: a micro-batch whose weights are all zero divides zero by zero, and counts for nothing."""
    model, plain = twins(mlp)
    x, y = torch.randn(2, BATCH, 64)
    counts = torch.tensor([1.0, 0.5, 0, 0, 2, 1, 0, 1])
    pipe = thread_pipe(model, (x,), stages=3, micro_batches=4, loss_fn=masked_mean)
    for _ in range(2):
        loss = pipe.step(x, target={"wanted": y, "counts": counts}, weight=counts)
    wanted = masked_mean(plain(x), {"wanted": y, "counts": counts})
    (wanted * 2).backward()
    assert torch.allclose(loss, wanted, rtol=1e-5)
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    with pytest.raises(StepError, match="must not be negative"):
        pipe.step(x, target={"wanted": y, "counts": counts}, weight=-counts)
    pipe.close()


class OwnLoss(nn.Module):
    """A language model that shifts its labels and takes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = GPT(tied=False)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(ids)
        shifted = logits[:, :-1].reshape(-1, 97), labels[:, 1:].reshape(-1)
        return {"loss": functional.cross_entropy(*shifted), "logits": logits}


@pytest.mark.case(10)
def test_a_loss_inside_the_model_is_right_with_weights_and_refused_without() -> None:
    model, plain = twins(OwnLoss)
    ids, labels = draw()
    pipe = thread_pipe(model, (ids, torch.randint(0, 97, ids.shape)), stages=3, micro_batches=4)
    with pytest.raises(StepError, match="weight=labels"):
        pipe.step(ids, labels)
    pipe.reset()
    model.zero_grad()
    loss, wanted = pipe.step(ids, labels, weight=labels[:, 1:] != IGNORED), plain(ids, labels)["loss"]
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-5)
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    equal = torch.randint(0, 97, ids.shape)
    assert torch.allclose(pipe.step(ids, equal), plain(ids, equal)["loss"], rtol=1e-5)
    pipe.close()


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.l1_loss])
def test_means_by_weights_count_by_weights(loss: Any) -> None:
    def weighted(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        result: Tensor = loss(output, target[0], weight=target[1])
        return result

    model, plain = twins(mlp)
    x, y, weight = torch.rand(3, BATCH, 64)
    weight[2:4] = 0
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=4, loss_fn=weighted)
    for _ in range(2):
        found, wanted = pipe.step(x, target=(y, weight)), weighted(plain(x), (y, weight))
        wanted.backward()
        assert torch.allclose(found, wanted, rtol=1e-5)
    assert differences(model, plain, {name for name, _ in model.named_parameters()}, rtol=1e-4) == []
    pipe.close()


class FusedLoss(nn.Module):
    """A classifier that takes its loss with its head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.head = nn.Parameter(torch.randn(10, 64))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.linear_cross_entropy(self.body(x), self.head, labels)


def labels_with_one_part_masked() -> Tensor:
    labels = torch.randint(0, 10, (BATCH,))
    labels[:2] = IGNORED
    labels[5] = IGNORED
    return labels


@pytest.mark.skipif(not hasattr(functional, "linear_cross_entropy"), reason="this torch has no fused cross entropy")
def test_a_fused_cross_entropy_leaves_out_what_is_ignored() -> None:
    model, plain = twins(FusedLoss)
    x, labels = torch.randn(BATCH, 64), labels_with_one_part_masked()
    pipe = thread_pipe(model, (x, labels.abs() % 10), stages=2, micro_batches=4)
    with pytest.raises(StepError, match="weight="):
        pipe.step(x, labels)
    pipe.reset()
    model.zero_grad()
    loss, wanted = pipe.step(x, labels, weight=labels != IGNORED), plain(x, labels)
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-5)
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    pipe.close()


def where_valid(output: Tensor, labels: Tensor) -> Tensor:
    valid = labels != IGNORED
    return functional.cross_entropy(output[valid], labels[valid]) if valid.any() else output.sum() * 0


def divided_by_hand(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output, labels, reduction="sum") / (labels != IGNORED).sum()


def mean_of_the_valid(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output, labels, reduction="none")[labels != IGNORED].mean()


def errors_of_the_valid(output: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(output[labels != IGNORED], torch.zeros_like(output)[labels != IGNORED])


def beside_a_mean_over_all(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output, labels) + functional.mse_loss(output, torch.zeros_like(output))


OWN_WAYS = [where_valid, divided_by_hand, mean_of_the_valid, errors_of_the_valid, beside_a_mean_over_all]


@pytest.mark.parametrize("loss_fn", OWN_WAYS)
def test_a_loss_that_leaves_out_targets_in_its_own_way_is_refused_without_weights(loss_fn: Any) -> None:
    model, plain = twins(mlp)
    x, labels = torch.randn(BATCH, 64), labels_with_one_part_masked()
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=4, loss_fn=loss_fn)
    with pytest.raises(StepError, match=r"over 0, 2, 1, 2 values .* weight="):
        pipe.step(x, target=labels)
    pipe.reset()
    if loss_fn is not beside_a_mean_over_all:
        loss = pipe.step(x, target=labels, weight=labels != IGNORED)
        assert torch.allclose(loss, loss_fn(plain(x), labels), rtol=1e-5)
    pipe.close()


def test_a_loss_may_move_the_samples_and_batches_be_uneven() -> None:
    def turned(output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(output.t(), target.t())

    model, plain = twins(mlp)
    x, y = torch.randn(2, 7, 64)
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=4, loss_fn=turned)
    assert torch.allclose(pipe.step(x, target=y), turned(plain(x), y), rtol=1e-5)
    pipe.close()


def test_a_sum_that_is_taken_for_a_mean_is_refused() -> None:
    model, _ = twins(mlp)
    x, y = torch.randn(2, BATCH, 64)
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=4, loss_fn=nn.MSELoss(reduction="sum"))
    with pytest.raises(StepError, match='reduction="sum"'):
        pipe.step(x, target=y)
    pipe.close()


def test_sums_add_up() -> None:
    def summed(output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(output, target, reduction="sum")

    model, plain = twins(mlp)
    x, y = torch.randn(2, 7, 64)
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=4, loss_fn=summed, reduction="sum")
    loss, wanted = pipe.step(x, target=y), summed(plain(x), y)
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-5)
    assert differences(model, plain, {name for name, _ in model.named_parameters()}, atol=1e-5) == []
    pipe.close()


def test_a_target_that_does_not_fit_is_refused() -> None:
    model, _ = twins(mlp)
    x, y = torch.randn(2, BATCH, 64)
    pipe = thread_pipe(model, (x,), stages=2, micro_batches=2, loss_fn=functional.mse_loss)
    with pytest.raises(StepError, match="7 targets came with 8 inputs") as caught:
        pipe.step(x, target=y[:7])
    assert isinstance(caught.value.__cause__, InputError)
    pipe.close()


def test_a_loss_may_change_the_containers_that_it_is_given() -> None:
    def popping(output: Tensor, target: dict[str, Tensor]) -> Tensor:
        return token_loss(output, target.pop("labels"))

    model, plain = twins(untied)
    ids, labels = draw()
    pipe = thread_pipe(model, (ids,), stages=2, micro_batches=4, loss_fn=popping)
    target = {"labels": labels}
    for _ in range(2):
        assert torch.equal(pipe.step(ids, target=target), plain_losses(plain, ids, labels, 4))
    assert differences(model, plain, set()) == []
    assert list(target) == ["labels"]
    pipe.close()
