"""What people do in their loops: freeze, hook, average, schedule, evaluate in between, save and load elsewhere."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from autopipe.errors import InputError, StepError
from autopipe.executor.pipeline import Pipeline
from autopipe.schedules.comms import Message
from tests.executor.pipes import thread_pipe, twins
from tests.models import GPT, JOBS, Block, token_loss
from tests.reference import differences, plain_step

BATCH = 8


def gradient_messages(pipe: Pipeline) -> Counter[tuple[int, int]]:
    """Count from now on the gradient messages that hold a tensor, by sending and reading stage."""
    counts: Counter[tuple[int, int]] = Counter()
    for rank in pipe._ranks.all:
        mail = rank.runtime._mail
        put = mail.put

        def counted(message: Message, values: list[Any] | None, put: Any = put) -> None:
            if message.backward and any(isinstance(value, Tensor) for value in values or ()):
                counts[message.source, message.target] += 1
            put(message, values)

        mail.put = counted  # type: ignore[method-assign]
    return counts


@pytest.mark.case(18)
@pytest.mark.parametrize(
    ("trainable", "wanted"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, {(1, 0), (2, 1), (3, 2)}),
        ({6, 7}, set()),
        ({0, 1}, {(1, 0), (2, 1), (3, 2)}),
        ({2, 3}, {(2, 1), (3, 2)}),
        ({0, 1, 2, 3, 6, 7}, {(1, 0), (2, 1), (3, 2)}),
        ({5}, {(3, 2)}),
    ],
)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_no_gradient_travels_below_the_lowest_trainable_parameter(
    schedule: str, trainable: set[int], wanted: set[tuple[int, int]]
) -> None:
    model, plain = twins(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(8))))
    for network in (model, plain):
        for index, layer in enumerate(network):
            layer.requires_grad_(index in trainable)
    x, y = torch.randn(2, BATCH, 8)
    pipe = thread_pipe(model, (x,), stages=4, micro_batches=4, loss_fn=functional.mse_loss, schedule=schedule)
    counts = gradient_messages(pipe)
    optimizers = [torch.optim.AdamW([p for p in n.parameters() if p.requires_grad]) for n in (pipe, plain)]
    for _ in range(3):
        x, y = torch.randn(2, BATCH, 8)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
        assert differences(model, plain, set()) == []
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert counts == dict.fromkeys(wanted, 12)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    pipe.close()


def test_unfreezing_a_lower_stage_later_is_a_sentence() -> None:
    model, plain = twins(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))))
    model[0].requires_grad_(False)
    x, y = torch.randn(2, BATCH, 8)
    pipe = thread_pipe(model, (x,), stages=4, micro_batches=2, loss_fn=functional.mse_loss)
    pipe.step(x, target=y)
    model[0].requires_grad_(True)
    with pytest.raises(StepError, match="unfrozen since"):
        pipe.step(x, target=y)
    model[0].requires_grad_(False)
    pipe.reset()
    model.zero_grad()
    plain[0].requires_grad_(False)
    assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 2))
    assert differences(model, plain, set()) == []
    pipe.close()


def test_freezing_a_stage_later_works_after_reset() -> None:
    model, plain = twins(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))))
    x, y = torch.randn(2, BATCH, 8)
    pipe = thread_pipe(model, (x,), stages=4, micro_batches=2, loss_fn=functional.mse_loss)
    pipe.step(x, target=y)
    plain_step(plain, functional.mse_loss, (x,), y, 2)
    for network in (model, plain):
        network[0].requires_grad_(False)
        network[1].requires_grad_(False)
    pipe.reset()
    assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 2))
    assert differences(model, plain, set()) == []
    pipe.close()


class Adapted(nn.Module):
    """A frozen body with a trainable adapter beside each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(Block(16, 2) for _ in range(4)).requires_grad_(False)
        self.downs = nn.ModuleList(nn.Linear(16, 2, bias=False) for _ in range(4))
        self.ups = nn.ModuleList(nn.Linear(2, 16, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for body, down, up in zip(self.bodies, self.downs, self.ups, strict=True):
            x = body(x) + up(down(x))
        return x


@pytest.mark.case(18)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_adapters_of_a_frozen_model_train(schedule: str) -> None:
    model, plain = twins(Adapted)
    x, y = torch.randn(2, BATCH, 5, 16)
    pipe = thread_pipe(model, (x,), stages=3, micro_batches=4, loss_fn=functional.mse_loss, schedule=schedule)
    assert torch.equal(pipe.step(x, target=y), plain_step(plain, functional.mse_loss, (x,), y, 4))
    # A body reads its input three times, the adapter a fourth.
    assert differences(model, plain, {name for name, _ in model.named_parameters()}) == []
    assert all(parameter.grad is None for parameter in model.bodies.parameters())
    pipe.close()


class Shared(nn.Module):
    """One linear called in three places, one of them nested, and a frozen embedding whose weight the head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(97, 16)
        self.mix = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(3))
        self.blocks[1][1] = self.mix
        self.head = nn.Linear(16, 97, bias=False)
        self.head.weight = self.tokens.weight
        self.tokens.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.mix(self.tokens(ids))
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.mix(x))


@pytest.mark.case(19)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parameters_tied_over_many_stages_nested_and_frozen(ranks: int, schedule: str) -> None:
    model, plain = twins(Shared)
    job = JOBS["gpt"]
    virtual = 2 if schedule == "zb-v" else 1
    pipe = thread_pipe(
        model,
        (job.draw(BATCH)[0],),
        stages=ranks,
        micro_batches=4,
        loss_fn=token_loss,
        schedule=schedule,
        virtual=virtual,
    )
    optimizers = [torch.optim.SGD(n.parameters(), 0.1, momentum=0.9) for n in (pipe, plain)]
    for _ in range(3):
        x, y = job.draw(BATCH)
        assert torch.allclose(pipe.step(x, target=y), plain_step(plain, token_loss, (x,), y, 4), rtol=1e-5)
        norms = pipe.clip_grad_norm_(0.1), nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        assert torch.allclose(*norms, rtol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert model.mix.weight is model.blocks[1][1].weight
    pipe.close()


@pytest.mark.case(19)
def test_a_tied_model_is_saved_and_goes_on_at_other_sizes(tmp_path: Path) -> None:
    plain, job = GPT(), JOBS["gpt"]
    state = copy.deepcopy(plain.state_dict())
    # SGD: the biases of the keys have gradients of rounding alone, which Adam would scale up.
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    for stages in (2, 4, 1, 3):
        model = GPT()
        model.load_state_dict(torch.load(tmp_path / "model.pt") if stages != 2 else state)
        pipe = thread_pipe(model, (job.draw(BATCH)[0],), stages=stages, micro_batches=4, loss_fn=job.loss)
        mine = torch.optim.SGD(pipe.parameters(), 0.1)
        for _ in range(5):
            x, y = job.draw(BATCH)
            assert torch.allclose(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4), rtol=1e-4)
            for each in (mine, optimizer):
                each.step()
                each.zero_grad()
        pipe.save_full(tmp_path / "model.pt")
        saved = torch.load(tmp_path / "model.pt")
        assert torch.equal(saved["head.weight"], saved["tokens.weight"])
        assert all(torch.allclose(saved[name], tensor, atol=1e-5) for name, tensor in plain.state_dict().items())
        pipe.close()


@pytest.mark.case(23)
def test_three_rounds_of_training_and_evaluation_at_other_sizes() -> None:
    job = JOBS["cnn"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(16)[0],), stages=3, micro_batches=4, loss_fn=job.loss)
    for _ in range(3):
        pipe.eval()
        plain.eval()
        for batch in (14, 7, 2, 1):
            x, y = job.draw(batch)
            with torch.no_grad():
                assert torch.allclose(pipe.evaluate(x, target=y), job.loss(plain(x), y), rtol=1e-5)
                found = pipe.predict(x, everywhere=True)
                assert torch.allclose(found, plain(x), rtol=1e-4, atol=1e-6)
                assert not found.requires_grad
        pipe.train()
        plain.train()
        x, y = job.draw(16)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4))
    assert differences(model, plain, set()) == []
    pipe.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
        lambda p: torch.optim.Adam(p, 1e-3, foreach=True),
        lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, 1e-2),
        lambda p: torch.optim.Adafactor(p, 1e-3),
    ],
    ids=["fused", "foreach", "nesterov", "adagrad", "adafactor"],
)
def test_any_optimizer_with_a_schedule_of_rates_and_an_average_of_weights(make: Any) -> None:
    job = JOBS["mlp"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(BATCH)[0],), stages=3, micro_batches=4, loss_fn=job.loss)
    averages = [AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for module in pipe.modules()]
    wanted = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizers = [make(list(network.parameters())) for network in (pipe, plain)]
    rates = [
        torch.optim.lr_scheduler.OneCycleLR(each, 0.1, total_steps=10, cycle_momentum=False) for each in optimizers
    ]
    for _ in range(3):
        x, y = job.draw(BATCH)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4))
        for each in (*optimizers, *rates):
            each.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        for average, module in zip(averages, pipe.modules(), strict=True):
            average.update_parameters(module)
        wanted.update_parameters(plain)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    found = {name: p for average in averages for name, p in average.module.named_parameters()}
    assert all(torch.equal(found[name], p) for name, p in wanted.module.named_parameters())
    pipe.close()


def test_users_hooks_run_once_per_micro_batch_and_may_change_gradients() -> None:
    job = JOBS["mlp"]
    model, plain = twins(job.build)
    calls: Counter[str] = Counter()
    for which, network in (("mine", model), ("plain", plain)):
        for index, layer in enumerate(network):
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(lambda *_, key=(which, index): calls.update([(*key, "forward")]))
                layer.register_full_backward_hook(lambda *_, key=(which, index): calls.update([(*key, "backward")]))
                layer.weight.register_hook(lambda gradient: gradient * 2)
                layer.bias.register_post_accumulate_grad_hook(
                    lambda p, key=(which, index): calls.update([(*key, "accumulated")])
                )
    x, y = job.draw(BATCH)
    pipe = thread_pipe(model, (x,), stages=3, micro_batches=4, loss_fn=job.loss)
    calls.clear()
    assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4))
    assert differences(model, plain, set()) == []
    assert set(calls.values()) == {4}
    assert len(calls) == 2 * 6 * 3
    pipe.close()


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return functional.mse_loss(output, target) * self.factor

    job = JOBS["mlp"]
    with pytest.raises(InputError, match=r"factor.*would not be trained"):
        thread_pipe(job.build(), (job.draw(BATCH)[0],), stages=2, micro_batches=2, loss_fn=Weighted())
    pipe = thread_pipe(job.build(), (job.draw(BATCH)[0],), stages=2, micro_batches=2, loss_fn=nn.MSELoss())
    x, y = job.draw(BATCH)
    assert pipe.step(x, target=y) > 0
    pipe.close()


class Sparse(nn.Module):
    """A model whose embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(97, 8, sparse=True)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 97)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(torch.relu(self.inner(self.embedding(ids))))
        return result


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_an_embeddings_gradient_may_be_sparse(schedule: str) -> None:
    model, plain = twins(Sparse)
    ids, labels = torch.randint(0, 97, (2, BATCH, 4))
    pipe = thread_pipe(model, (ids,), stages=2, micro_batches=4, loss_fn=token_loss, schedule=schedule)
    optimizers = [torch.optim.SGD(pipe.parameters(), 0.1), torch.optim.SGD(plain.parameters(), 0.1)]
    for _ in range(2):
        assert torch.equal(pipe.step(ids, target=labels), plain_step(plain, token_loss, (ids,), labels, 4))
        mine, theirs = model.embedding.weight.grad, plain.embedding.weight.grad  # type: ignore[union-attr]
        assert mine.is_sparse  # type: ignore[union-attr]
        assert torch.equal(mine.to_dense(), theirs.to_dense())  # type: ignore[union-attr, operator]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    pipe.close()
