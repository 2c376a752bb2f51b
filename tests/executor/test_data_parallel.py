"""Replicas of a pipeline train as one: equal to each other bit for bit, and to the plain model over the whole batch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from autopipe.errors import InputError, StepError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.sampler import ReplicaSampler, replica_sizes
from autopipe.recorder import record
from autopipe.schedules.named import make
from tests.models import JOBS
from tests.processes import ProcessPool
from tests.reference import even_bounds

REPLICAS = 2


def build(
    name: str,
    *,
    micro_batches: int = 4,
    schedule: str = "1f1b",
    replicas: int = REPLICAS,
    seed: int = 0,
    **options: Any,
) -> tuple[Pipeline, nn.Module]:
    """Return a model as a pipeline of two ranks and some replicas, and its plain twin."""
    job = JOBS[name]
    torch.manual_seed(seed)
    model = job.build()
    plain = copy.deepcopy(model)
    recording = record(model, (job.draw(8)[0],))
    virtual = 2 if schedule in ("interleaved", "zb-v") else 1
    layout = Layout(
        bounds=even_bounds(len(recording.graph.layers), 2 * virtual),
        stage_ranks=make(schedule, stages=2, micro_batches=1, virtual=virtual).stage_ranks,
        schedule=schedule,
        micro_batches=micro_batches,
        virtual_stages=virtual,
        replicas=replicas,
        **options,
    )
    ranks = None if torch.distributed.is_initialized() else 2 * replicas
    return Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss, ranks=ranks), plain


def part(pipe: Pipeline, tensor: Tensor) -> Tensor:
    """Return what this process passes to ``step``: its replica's part, or all of it where replicas are threads."""
    if pipe.mesh is None:
        return tensor
    return tensor.split(replica_sizes(len(tensor), pipe.layout.replicas))[pipe.replica]


def train(pipe: Pipeline, plain: nn.Module, name: str, *, batches: tuple[int, ...], lr: float = 0.05) -> list[str]:
    """Train both on the same batches and return what differs by more than 1e-6."""
    job = JOBS[name]
    torch.manual_seed(1)
    wrong = []
    optimizers = [torch.optim.SGD(ps, lr=lr, momentum=0.9) for ps in (pipe.parameters(), plain.parameters())]
    for number, batch in enumerate(batches):
        x, y = job.draw(batch)
        loss = pipe.step(part(pipe, x), target=part(pipe, y))
        wanted = job.loss(plain(x), y)
        wanted.backward()
        if not torch.allclose(loss, wanted, rtol=1e-6, atol=1e-6):
            wrong.append(f"loss {number}: {loss} against {wanted}")
        norm = pipe.clip_grad_norm_(1.0)
        if not torch.allclose(norm, nn.utils.clip_grad_norm_(plain.parameters(), 1.0), rtol=1e-5):
            wrong.append(f"norm {number}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    theirs = dict(plain.named_parameters())
    wrong += [n for n, p in pipe.named_parameters() if not torch.allclose(p, theirs[n], rtol=1e-6, atol=1e-6)]
    return wrong


def trained(rank: int, name: str, steps: int, options: dict[str, Any]) -> tuple[list[str], tuple[int, int], dict]:
    pipe, plain = build(name, **options)
    wrong = train(pipe, plain, name, batches=(16,) * (steps - 1) + (11,))
    return wrong, (pipe.rank, pipe.replica), {n: p.detach().clone() for n, p in pipe.named_parameters()}


def check_outcomes(outcomes: list[Any]) -> None:
    """Check that nothing differs from the plain model, and that replicas are equal bit for bit."""
    assert [wrong for wrong, _, _ in outcomes if wrong] == []
    held = {place: parameters for _, place, parameters in outcomes}
    assert len(held) == len(outcomes)
    for (rank, replica), parameters in held.items():
        first = held[rank, 0]
        assert first.keys() == parameters.keys() != set()
        assert [n for n in first if not torch.equal(first[n], parameters[n])] == [], (rank, replica)


@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_two_replicas_of_two_stages_train_ten_steps_like_the_plain_model(processes: ProcessPool, name: str) -> None:
    check_outcomes(processes.run(trained, 4, name, 10, {}))


@pytest.mark.case(12)
@pytest.mark.parametrize("schedule", ["zb-h1", "interleaved", "zb-v"])
def test_replicas_are_equal_under_every_kind_of_schedule(processes: ProcessPool, schedule: str) -> None:
    check_outcomes(processes.run(trained, 4, "gpt", 2, {"schedule": schedule}))


def test_replicas_stand_where_the_plan_puts_them(processes: ProcessPool) -> None:
    outcomes = processes.run(trained, 4, "mlp", 2, {"device_order": (3, 0, 1, 2)})
    assert [place for _, place, _ in outcomes] == [(0, 1), (1, 0), (1, 1), (0, 0)]
    check_outcomes(outcomes)


@pytest.mark.parametrize("name", ["mlp", "gpt", "unet"])
def test_thread_replicas_train_like_the_plain_model(name: str) -> None:
    pipe, plain = build(name)
    assert train(pipe, plain, name, batches=(16, 11, 3, 1, 16)) == []
    pipe.close()


def test_three_thread_replicas_that_recompute_train_like_the_plain_model() -> None:
    pipe, plain = build("gpt", replicas=3, recompute=("blocks.0.qkv", "blocks.2.up"))
    assert train(pipe, plain, "gpt", batches=(16, 13)) == []
    pipe.close()


def hooked(rank: int, kind: str) -> tuple[list[str], tuple[int, int], dict]:
    pipe, plain = build("mlp", schedule="interleaved")
    if kind == "power":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=12, start_powerSGD_iter=2)
        pipe.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        pipe.register_comm_hook(None, getattr(default_hooks, kind))
    before = copy.deepcopy(plain.state_dict())
    train(pipe, plain, "mlp", batches=(16,) * 4)
    theirs = dict(plain.named_parameters())
    # Compression changes the way a little: each parameter must have gone nearly where the plain one went.
    allowed = 0.3 if kind == "power" else 0.02
    far = [
        f"{name} {ratio:.3f}"
        for name, p in pipe.named_parameters()
        if (ratio := float((p - theirs[name]).norm() / (theirs[name] - before[name]).norm())) > allowed
    ]
    return far, (pipe.rank, pipe.replica), {n: p.detach().clone() for n, p in pipe.named_parameters()}


@pytest.mark.parametrize("kind", ["fp16_compress_hook", "bf16_compress_hook", "allreduce_hook", "power"])
def test_each_hook_of_data_parallel_runs_and_keeps_replicas_equal(processes: ProcessPool, kind: str) -> None:
    check_outcomes(processes.run(hooked, 4, kind))


def order_of_buckets(rank: int) -> list[str]:
    """Return in which order a rank with two stages ran their backwards and sent their gradients."""
    pipe, _ = build("mlp", schedule="interleaved")
    order: list[str] = []
    homes = {id(p): f"stage {k}" for k, module in enumerate(pipe.modules()) for p in module.parameters()}

    def hook(group: Any, bucket: Any) -> Any:
        order.append(f"send {homes[id(bucket.parameters()[0])]}")
        return default_hooks.allreduce_hook(group, bucket)

    pipe.register_comm_hook(None, hook)
    for k, module in enumerate(pipe.modules()):
        first = next(module.parameters())
        first.register_post_accumulate_grad_hook(lambda _, k=k: order.append(f"stage {k}"))
    x, y = JOBS["mlp"].draw(16)
    pipe.step(part(pipe, x), target=part(pipe, y))
    return order


def test_gradients_leave_while_the_cool_down_runs(processes: ProcessPool) -> None:
    for order in processes.run(order_of_buckets, 4):
        assert order.count("stage 0") == order.count("stage 1") == 4
        # The upper stage's gradients are on the way before the lower one's last backward.
        last = len(order) - 1 - order[::-1].index("stage 0")
        assert order.index("send stage 1") < last < order.index("send stage 0")


def test_hooks_are_refused_where_nothing_is_sent() -> None:
    for replicas, why in ((1, "the only one"), (2, "threads")):
        pipe, _ = build("mlp", replicas=replicas)
        with pytest.raises(InputError, match=why):
            pipe.register_comm_hook(None, default_hooks.fp16_compress_hook)
        pipe.close()


def four_replicas(rank: int, batches: tuple[int, ...]) -> list[str]:
    """Train four replicas of one stage, whose models differ at first."""
    job = JOBS["mlp"]
    torch.manual_seed(0)
    plain = job.build()
    torch.manual_seed(rank)
    model = job.build()
    recording = record(model, (job.draw(8)[0],))
    layout = Layout(
        bounds=(0, len(recording.graph.layers)), stage_ranks=(0,), schedule="1f1b", micro_batches=2, replicas=4
    )
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=job.loss)
    return train(pipe, plain, "mlp", batches=batches)


def test_replicas_begin_with_the_first_ones_model_and_may_have_no_samples(processes: ProcessPool) -> None:
    assert processes.run(four_replicas, 4, (16, 2, 1, 9)) == [[]] * 4


def averaged_buffers(rank: int) -> tuple[tuple[int, int], dict[str, Tensor]]:
    job = JOBS["cnn"]
    pipe, plain = build("cnn")
    torch.manual_seed(3)
    x, y = job.draw(16)
    pipe.step(part(pipe, x), target=part(pipe, y))
    plain.train()
    for inputs in x[:8].split(2):
        plain(inputs)
    theirs = dict(plain.named_buffers())
    mine = {name: buffer.clone() for module in pipe.modules() for name, buffer in module.named_buffers()}
    assert mine
    assert [name for name, buffer in mine.items() if not torch.equal(buffer, theirs[name])] == []
    return (pipe.rank, pipe.replica), mine


def test_running_statistics_are_the_first_replicas(processes: ProcessPool) -> None:
    processes.run(averaged_buffers, 4)
    averaged_buffers(0)


def failing(rank: int) -> list[str]:
    """Return what was raised when a stage failed, when inputs could not be read, and when all was well."""
    pipe, _ = build("mlp")
    job = JOBS["mlp"]
    x, y = job.draw(16)
    raised = []
    for attempt in ("a stage", "the inputs", "nothing"):
        is_culprit = pipe.mesh is None or (pipe.rank, pipe.replica) == (1, 1)
        handles = []
        if is_culprit and attempt == "a stage":
            handles = [pipe.modules()[-1].register_forward_pre_hook(lambda *_: 1 / 0)]
        is_culprit = attempt == "the inputs" and (pipe.mesh is None or (pipe.rank, pipe.replica) == (0, 1))
        raised.append("")
        try:
            pipe.step(None if is_culprit else part(pipe, x), target=part(pipe, y))
        except (StepError, InputError) as error:
            raised[-1] = str(error)
            assert all(p.grad is None for p in pipe.parameters())
        for handle in handles:
            handle.remove()
        pipe.reset()
    pipe.close()
    return raised


def test_what_fails_in_one_replica_is_raised_in_all_and_training_goes_on(processes: ProcessPool) -> None:
    for stage, inputs, nothing in [*processes.run(failing, 4), failing(0)]:
        assert "division by zero" in stage
        assert "no tensor with a batch dimension" in inputs
        assert nothing == ""


def test_gradients_of_several_steps_add_up_over_replicas() -> None:
    pipe, plain = build("gpt")
    job = JOBS["gpt"]
    for _ in range(3):
        x, y = job.draw(12)
        pipe.step(x, target=y)
        job.loss(plain(x), y).backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in pipe.named_parameters():
        assert torch.allclose(parameter.grad, theirs[name].grad, rtol=1e-5, atol=1e-7), name
    pipe.close()


def test_thread_replicas_predict_and_evaluate_the_whole_batch() -> None:
    pipe, plain = build("gpt")
    x, y = JOBS["gpt"].draw(11)
    with torch.no_grad():
        wanted = plain(x)
    assert torch.allclose(pipe.predict(x), wanted, rtol=1e-5, atol=1e-6)
    assert torch.allclose(pipe.evaluate(x, target=y), JOBS["gpt"].loss(wanted, y), rtol=1e-6)
    pipe.close()


def test_replicas_count_valid_targets_and_weights_over_all_of_them() -> None:
    pipe, plain = build("gpt")
    job = JOBS["gpt"]
    x, y = job.draw(12)
    y[:5, 2:] = -100
    loss = pipe.step(x, target=y)
    wanted = job.loss(plain(x), y)
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-6)
    theirs = dict(plain.named_parameters())
    for name, parameter in pipe.named_parameters():
        assert torch.allclose(parameter.grad, theirs[name].grad, rtol=1e-5, atol=1e-7), name
    pipe.close()


def test_a_sampler_gives_every_sample_to_one_replica() -> None:
    for samples, batch, replicas in ((20, 8, 2), (21, 8, 3), (18, 8, 3), (17, 8, 4), (8, 8, 1)):
        samplers = [ReplicaSampler(samples, batch, replica=k, replicas=replicas, seed=5) for k in range(replicas)]
        for epoch in range(2):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            rows = [list(sampler) for sampler in samplers]
            assert {len(row) for row in rows} == {len(samplers[0])}
            seen = [index for row in rows for part in row for index in part]
            rest = samples % batch
            assert len(set(seen)) == len(seen) == samples - (rest if rest < replicas else 0)
            assert all(parts for row in rows for parts in row)
            sizes = [[len(part) for part in parts] for parts in zip(*rows, strict=True)]
            assert all(max(row) - min(row) <= 1 for row in sizes)
    dropping = ReplicaSampler(20, 8, replica=0, replicas=2, drop_last=True, shuffle=False)
    assert list(dropping) == [[0, 1, 2, 3], [8, 9, 10, 11]]
