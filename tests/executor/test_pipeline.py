"""What a user does around a step: accumulate, clip, evaluate, save, look at the timeline."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autopipe.documents.timeline import Lane
from autopipe.errors import InputError, MismatchError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.request import Arguments
from autopipe.recorder import record
from tests.executor.pipes import thread_pipe, twins
from tests.models import CNN, GPT, JOBS, mlp, token_loss
from tests.reference import differences, even_bounds, plain_step

GPT_EXEMPT = {"tokens.weight"}


@pytest.mark.case(1)
def test_uneven_batches_train_like_the_plain_model() -> None:
    job = JOBS["mlp"]
    for micro_batches in (3, 4):
        model, plain = twins(job.build)
        pipe = thread_pipe(model, (job.draw(8)[0],), stages=3, micro_batches=micro_batches, loss_fn=job.loss)
        for batch in (8, 10, 2, 1, 8):
            x, y = job.draw(batch)
            assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, micro_batches))
        assert differences(model, plain, set()) == []


@pytest.mark.case(9)
@pytest.mark.parametrize("steps", [2, 4])
def test_gradients_of_several_steps_add_up(steps: int) -> None:
    job = JOBS["gpt"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=3, micro_batches=4, loss_fn=job.loss)
    for _ in range(steps):
        x, y = job.draw(8)
        pipe.step(x, target=y)
        plain_step(plain, job.loss, (x,), y, 4)
    assert differences(model, plain, GPT_EXEMPT) == []


@pytest.mark.case(9)
def test_scaled_steps_equal_one_large_batch() -> None:
    job = JOBS["mlp"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=2, micro_batches=4, loss_fn=job.loss)
    x, y = job.draw(16)
    losses = [pipe.step(x[part], target=y[part], scale=0.5) for part in (slice(0, 8), slice(8, 16))]
    total = plain_step(plain, job.loss, (x,), y, 8)
    assert torch.allclose((losses[0] + losses[1]) / 2, total)
    assert differences(model, plain, {name for name, _ in plain.named_parameters()}) == []


@pytest.mark.case(11)
@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
@pytest.mark.parametrize(
    ("stages", "schedule", "virtual"), [(1, "1f1b", 1), (2, "1f1b", 1), (4, "1f1b", 1), (2, "interleaved", 2)]
)
def test_clipping_counts_a_tied_weight_once(stages: int, schedule: str, virtual: int, norm_type: float) -> None:
    job = JOBS["gpt"]
    model, plain = twins(job.build)
    pipe = thread_pipe(
        model,
        (job.draw(8)[0],),
        stages=stages,
        micro_batches=4,
        loss_fn=job.loss,
        schedule=schedule,
        virtual=virtual,
    )
    x, y = job.draw(8)
    pipe.step(x, target=y)
    plain_step(plain, job.loss, (x,), y, 4)
    norm = pipe.clip_grad_norm_(0.1, norm_type)
    wanted = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type)
    assert torch.allclose(norm, wanted, rtol=1e-6)
    assert differences(model, plain, {name for name, _ in plain.named_parameters()}) == []


def test_training_with_a_tied_weight_stays_on_the_plain_models_path() -> None:
    job = JOBS["gpt"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=4, micro_batches=4, loss_fn=job.loss)
    optimizers = [torch.optim.AdamW(parameters, lr=1e-3) for parameters in (pipe.parameters(), plain.parameters())]
    for _ in range(5):
        x, y = job.draw(8)
        loss, wanted = pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4)
        assert torch.allclose(loss, wanted, rtol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert model.head.weight is model.tokens.weight
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if name.endswith("qkv.bias"):
            # A bias of the keys cannot change a softmax: its gradient is rounding alone, which Adam scales up.
            parameter, other = (torch.cat((bias[:64], bias[128:])) for bias in (parameter, other))
        assert torch.allclose(parameter, other, rtol=1e-4, atol=1e-5), name


@pytest.mark.case(23)
def test_evaluation_between_training_steps_changes_nothing() -> None:
    job = JOBS["cnn"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(16)[0],), stages=3, micro_batches=4, loss_fn=job.loss)

    def evaluate() -> None:
        x, y = job.draw(14)
        pipe.eval()
        plain.eval()
        with torch.no_grad():
            wanted = sum(
                job.loss(plain(xi), yi) * (len(xi) / 14) for xi, yi in zip(x.split(4), y.split(4), strict=True)
            )
        assert torch.allclose(pipe.evaluate(x, target=y), wanted, rtol=1e-5)
        pipe.train()
        plain.train()

    evaluate()
    for _ in range(3):
        x, y = job.draw(16)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4))
        evaluate()
    assert differences(model, plain, set()) == []


@pytest.mark.case(13)
def test_batch_norm_counts_one_update_per_micro_batch() -> None:
    job = JOBS["cnn"]
    model, _ = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=2, micro_batches=4, loss_fn=job.loss)
    x, y = job.draw(8)
    pipe.step(x, target=y)
    counters = {int(buffer) for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert counters == {4}


class InPlaceFirst(nn.Module):
    """Every layer but the first begins with an in-place operation."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.relus = nn.ModuleList(nn.ReLU(inplace=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linears[0](x)
        for relu, linear in zip(self.relus, self.linears[1:], strict=True):
            x = linear(relu(x))
        return x


@pytest.mark.case(25)
def test_a_stage_may_begin_in_place() -> None:
    model, plain = twins(InPlaceFirst)
    x, y = torch.randn(2, 8, 8)
    layers = ["linears.0", "relus.0", "linears.1", "relus.1", "linears.2"]
    names = [layer.name for layer in record(model, (x,)).graph.layers]
    for position in range(1, len(names)):
        model.zero_grad()
        plain.zero_grad()
        pipe = thread_pipe(
            model, (x,), stages=2, micro_batches=4, loss_fn=nn.functional.mse_loss, bounds=(0, position, len(names))
        )
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, nn.functional.mse_loss, (x,), y, 4))
        assert differences(model, plain, set()) == []
    assert len(names) > 1, layers


@pytest.mark.case(18)
def test_only_trainable_parts_get_gradients() -> None:
    job = JOBS["mlp"]
    for trainable in ({0}, {2}, {5}, {1, 4}):
        model, plain = twins(job.build)
        for network in (model, plain):
            for index in range(6):
                network[2 * index].requires_grad_(index in trainable)
        pipe = thread_pipe(model, (job.draw(8)[0],), stages=4, micro_batches=4, loss_fn=job.loss)
        x, y = job.draw(8)
        assert torch.equal(pipe.step(x, target=y), plain_step(plain, job.loss, (x,), y, 4))
        assert differences(model, plain, set()) == []


def test_a_model_frozen_as_a_whole_is_refused() -> None:
    job = JOBS["mlp"]
    model, _ = twins(job.build)
    model.requires_grad_(False)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=2, micro_batches=2, loss_fn=job.loss)
    x, y = job.draw(8)
    with pytest.raises(Exception, match="no trainable parameter"):
        pipe.step(x, target=y)


def test_the_whole_state_goes_out_and_comes_back(tmp_path: Path) -> None:
    for build, job in ((GPT, JOBS["gpt"]), (CNN, JOBS["cnn"])):
        model, _ = twins(build)
        pipe = thread_pipe(model, (job.draw(8)[0],), stages=3, micro_batches=2, loss_fn=job.loss)
        x, y = job.draw(8)
        pipe.step(x, target=y)
        pipe.save_full(tmp_path / "model.pt")
        state = torch.load(tmp_path / "model.pt", weights_only=True)
        assert state.keys() == model.state_dict().keys()
        other = build()
        other.load_state_dict(state)
        assert all(torch.equal(tensor, state[name]) for name, tensor in other.state_dict().items())
        fresh, _ = twins(build, seed=1)
        second = thread_pipe(fresh, (job.draw(8)[0],), stages=2, micro_batches=2, loss_fn=job.loss)
        second.load_state_dict(state)
        assert all(torch.equal(fresh.state_dict()[name], state[name]) for name in state)


def test_a_foreign_state_is_refused_and_nothing_loaded() -> None:
    job = JOBS["mlp"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=2, micro_batches=2, loss_fn=job.loss)
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    del state["10.weight"]
    with pytest.raises(MismatchError, match=r"no 10\.weight"):
        pipe.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_the_timeline_shows_what_the_schedule_says() -> None:
    job = JOBS["mlp"]
    model, _ = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=3, micro_batches=4, loss_fn=job.loss)
    with pytest.raises(InputError, match="no step has run"):
        pipe.timeline()
    x, y = job.draw(8)
    pipe.step(x, target=y)
    timeline = pipe.timeline()
    from autopipe.schedules.named import make

    schedule = make("1f1b", stages=3, micro_batches=4)
    for rank, actions in zip(timeline.ranks, schedule.actions, strict=True):
        computed = [span for span in rank.spans if span.lane is Lane.COMPUTE]
        assert [span.label for span in computed] == [str(action) for action in actions]
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(computed))
    assert timeline.step_ns == max(span.end_ns for rank in timeline.ranks for span in rank.spans)


def test_the_callers_autocast_reaches_every_stage() -> None:
    job = JOBS["mlp"]
    model, plain = twins(job.build)
    pipe = thread_pipe(model, (job.draw(8)[0],), stages=3, micro_batches=2, loss_fn=job.loss)
    x, y = job.draw(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = pipe.step(x, target=y)
        halves = [job.loss(plain(x[part]), y[part]) * 0.5 for part in (slice(0, 4), slice(4, 8))]
    for half in halves:
        half.backward()
    assert torch.equal(loss, halves[0].detach() + halves[1].detach())
    assert differences(model, plain, set()) == []


@pytest.mark.case(29)
def test_live_tensors_are_flat_in_the_number_of_micro_batches() -> None:
    job = JOBS["mlp"]
    peaks = set()
    for micro_batches in (4, 8, 16):
        model, _ = twins(mlp)
        pipe = thread_pipe(model, (job.draw(16)[0],), stages=4, micro_batches=micro_batches, loss_fn=job.loss)
        x, y = job.draw(16)
        for _ in range(2):  # from the second step on, shapes are known and receives are posted early
            pipe.step(x, target=y)
        ranks = pipe.timeline().ranks
        peaks.add(tuple((rank.peak_in_flight, rank.peak_outputs, rank.peak_receive_buffers) for rank in ranks))
    assert len(peaks) == 1


class Turns(nn.Module):
    """Ends in a view of what it computed, whose memory must go with it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).transpose(1, 2).unsqueeze(1).view(-1, 8, 8)


@pytest.mark.case(29)
def test_stages_that_end_in_a_view_hold_no_more_of_their_outputs() -> None:
    peaks = set()
    for micro_batches in (4, 8, 16):
        model, plain = twins(lambda: nn.Sequential(*(Turns() for _ in range(4))))
        x = torch.randn(16, 8, 8)
        pipe = thread_pipe(model, (x,), stages=4, micro_batches=micro_batches, loss_fn=nn.functional.mse_loss)
        for _ in range(2):
            wanted = plain_step(plain, nn.functional.mse_loss, (x,), x, micro_batches)
            assert torch.equal(pipe.step(x, target=x), wanted)
        assert differences(model, plain, set()) == []
        peaks.add(tuple((rank.peak_outputs, rank.peak_receive_buffers) for rank in pipe.timeline().ranks))
        pipe.close()
    assert len(peaks) == 1


def test_a_pipeline_says_what_it_is() -> None:
    model = copy.deepcopy(GPT())
    ids = torch.zeros(2, 16, dtype=torch.int64)
    pipe = thread_pipe(model, (ids,), stages=2, micro_batches=2, loss_fn=token_loss)
    assert repr(pipe) == "Pipeline(GPT, 2 stages, 2 micro-batches, 1f1b, 2 thread-ranks)"


class Scaled(nn.Module):
    """Has an argument whose name `step` keeps for itself, and one more after ``*``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, *rest: Tensor, scale: float) -> Tensor:
        return self.second(self.first(x) * scale + rest[0])


def test_an_argument_called_scale_goes_by_position_or_in_arguments() -> None:
    model, plain = twins(Scaled)
    x, rest, y = torch.randn(3, 8, 8)
    recording = record(model, (x, rest), {"scale": 0.5})
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), 2), stage_ranks=(0, 1), schedule="1f1b", micro_batches=2
    )
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=nn.functional.mse_loss, ranks=2)
    with pytest.raises(InputError, match=r"argument called scale.*autopipe.Arguments"):
        pipe.step(x, rest, target=y, scale=0.5)
    loss = pipe.step(x, rest, 0.5, target=y)
    assert torch.equal(loss, pipe.step(Arguments(x, rest, scale=0.5), target=y))
    with pytest.raises(InputError, match="pass it alone"):
        pipe.step(Arguments(x, rest), target=y, scale=0.5, other=1)
    halves = [nn.functional.mse_loss(plain(x[p], rest[p], scale=0.5), y[p]) * 0.5 for p in (slice(4), slice(4, 8))]
    assert torch.equal(loss, halves[0] + halves[1])


class Masked(nn.Module):
    """Takes a mask over positions, which has nothing to do with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.second(mask @ self.first(x))


def test_a_tensor_that_does_not_carry_the_batch_is_never_cut() -> None:
    model, plain = twins(Masked)
    mask = torch.rand(6, 6)
    pipe = thread_pipe(model, (torch.randn(4, 6, 8), mask), stages=2, micro_batches=2, loss_fn=nn.functional.mse_loss)
    for batch in (4, 6):  # with six samples the mask only looks as if it carried the batch
        x, y = torch.randn(2, batch, 6, 8)
        half = batch // 2
        loss = pipe.step(x, mask, target=y)
        parts = [nn.functional.mse_loss(plain(x[p], mask), y[p]) * 0.5 for p in (slice(half), slice(half, batch))]
        for part in parts:
            part.backward()
        assert torch.equal(loss, parts[0].detach() + parts[1].detach())
    assert differences(model, plain, set()) == []
