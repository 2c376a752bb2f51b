import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopipe.costs.validity import check_profile
from autopipe.documents.files import decode, encode
from autopipe.documents.profile import Profile, Source
from autopipe.errors import InputError, ProfileError
from autopipe.profiler import measure
from autopipe.recorder import record
from tests.models import CNN, GPT, JOBS


def profile_of(name: str, batch: int = 4, **options: Any) -> Profile:
    job = JOBS[name]
    inputs, target = job.draw(batch)
    return measure(job.build(), (inputs,), target=target, loss_fn=job.loss, budget_s=0, **options)


@pytest.mark.parametrize("name", JOBS)
def test_every_layer_has_a_cost_at_every_size(name: str) -> None:
    profile = profile_of(name)
    assert profile.micro_batches == (1, 2, 4)
    assert profile.graph is not None
    assert [layer.name for layer in profile.layers] == [layer.name for layer in profile.graph.layers]
    for layer in profile.layers:
        assert len(layer.costs) == len(profile.micro_batches)
        assert all(cost.source is Source.MEASURED for cost in layer.costs)
    assert len(profile.loss) == len(profile.whole) == len(profile.micro_batches)
    for position, whole in enumerate(profile.whole):
        costs = [*(layer.costs[position] for layer in profile.layers), profile.loss[position]]
        assert whole.layers_ns == sum(cost.forward_ns + cost.backward_ns for cost in costs)
        assert whole.step_ns > 0
    assert decode(encode(profile), Profile) == profile
    check_profile(profile)


def test_a_backward_has_two_parts_and_the_first_layer_no_input_gradient() -> None:
    profile = profile_of("mlp", batch=64, micro_batches=(64,))
    first, *others = (layer.costs[0] for layer in profile.layers)
    assert first.input_grad_ns == 0
    assert first.weight_grad_ns > 0
    for cost in others:
        assert cost.input_grad_ns > 0
        assert cost.weight_grad_ns > 0
        assert cost.recompute_ns is not None
    assert (profile.loss[0].input_grad_ns, profile.loss[0].weight_grad_ns) == (profile.loss[0].backward_ns, 0)


def test_a_layer_that_writes_to_its_input_has_no_recompute_cost() -> None:
    class AddsInPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.add_(1))

    model = nn.Sequential(nn.Linear(6, 6), AddsInPlace(6, 6), nn.Linear(6, 6))
    profile = measure(model, (torch.randn(4, 6),), micro_batches=(4,), budget_s=0)
    assert [layer.costs[0].recompute_ns is not None for layer in profile.layers] == [True, False, True]


def test_parameters_add_up_to_the_models() -> None:
    model = CNN()
    profile = measure(model, (torch.randn(4, 3, 8, 8),), optimizer="sgd:momentum=0.9", budget_s=0)
    total = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert sum(layer.parameter_bytes for layer in profile.layers) == total
    assert sum(layer.gradient_bytes for layer in profile.layers) == total
    assert sum(layer.optimizer_bytes for layer in profile.layers) == total
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    assert sum(layer.buffer_bytes for layer in profile.layers) == buffers


def test_a_tied_parameter_is_named_with_its_layers() -> None:
    profile = profile_of("gpt", micro_batches=(2,))
    (shared,) = profile.shared
    assert shared.name == "tokens.weight"
    assert shared.bytes == 97 * 64 * 4
    assert len(shared.layers) == 2
    assert all("tokens.weight" in profile.layers[index].parameters for index in shared.layers)


def test_identical_blocks_share_their_times() -> None:
    profile = profile_of("gpt", micro_batches=(2,))
    groups: dict[int, set[tuple[int, int]]] = {}
    for layer in profile.layers:
        groups.setdefault(layer.group, set()).add((layer.costs[0].forward_ns, layer.costs[0].backward_ns))
    assert all(len(times) == 1 for times in groups.values())
    assert len(groups) < len(profile.layers)


def test_crossing_bytes_follow_the_micro_batch() -> None:
    profile = profile_of("mlp", micro_batches=(1, 2, 8))
    assert {value.bytes for value in profile.values} == {(256, 512, 2048)}


def snapshot_of(model: nn.Module) -> dict[str, Any]:
    """Return all that must be as it was: values, gradients, modes, hooks and plain attributes."""
    seen: dict[str, Any] = {"rng": torch.get_rng_state()}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        seen[name] = (id(tensor), tensor.detach().clone(), None if tensor.grad is None else tensor.grad.clone())
    for name, module in model.named_modules():
        plain = {key: value for key, value in vars(module).items() if isinstance(value, (int, float, str, bool))}
        hooks = {key: len(value) for key, value in vars(module).items() if key.endswith("_hooks")}
        seen[f"module {name}"] = (plain, hooks, sorted(vars(module)))
    return seen


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("build", [WithDropout, lambda: WithDropout().eval()])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_measuring_leaves_no_trace(build: Callable[[], nn.Module], with_gradients: bool) -> None:
    model = build()
    inputs = torch.randn(4, 6)
    if with_gradients:
        model(inputs).sum().backward()
    before = snapshot_of(model)
    gradients = [parameter.grad for parameter in model.parameters()]
    measure(model, (inputs,), micro_batches=(2, 4), budget_s=0)
    assert same(before, snapshot_of(model))
    assert all(old is new.grad for old, new in zip(gradients, model.parameters(), strict=True))


def test_a_failure_leaves_no_trace_either() -> None:
    model, inputs = WithDropout(), torch.randn(4, 6)
    before = snapshot_of(model)

    def interrupted(output: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(model, (inputs,), loss_fn=interrupted, micro_batches=(4,), budget_s=0)
    assert same(before, snapshot_of(model))


def test_an_interrupt_between_rounds_leaves_no_trace() -> None:
    model, inputs = WithDropout(), torch.randn(4, 6)
    before = snapshot_of(model)

    def interrupting(what: str, _: float) -> None:
        if what == "measuring time":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(model, (inputs,), micro_batches=(4,), budget_s=5, progress=interrupting)
    assert same(before, snapshot_of(model))


def test_the_profile_says_which_loss_it_was_taken_with() -> None:
    inputs = torch.randn(4, 6)
    assert measure(nn.Linear(6, 2), inputs, micro_batches=(4,), budget_s=0).loss_name == "mean of the output"

    class OwnLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.linear(x)
            return {"loss": y.square().mean(), "logits": y}

    assert measure(OwnLoss(), inputs, micro_batches=(4,), budget_s=0).loss_name == "the model's own loss"
    assert profile_of("gpt", micro_batches=(2,)).loss_name == "token_loss"


def test_a_target_that_does_not_fit_is_named_with_the_loss() -> None:
    inputs, _ = JOBS["gpt"].draw(4)
    with pytest.raises(ProfileError, match=r"in the forward of the loss at micro-batch size 4.*target"):
        measure(GPT(), (inputs,), target=torch.zeros(3), loss_fn=JOBS["gpt"].loss, budget_s=0)


def test_memory_that_runs_out_is_named_with_layer_and_size() -> None:
    class Hungry(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] > 100:
                raise torch.OutOfMemoryError("no more")
            return super().forward(x)

    model = nn.Sequential(nn.Linear(6, 6), Hungry(6, 6))
    with pytest.raises(
        ProfileError, match=r"memory ran out in the forward of layer 1 at micro-batch size 200.*\(100,\)"
    ):
        measure(model, (torch.randn(4, 6),), micro_batches=(2, 200), budget_s=0)


def test_a_size_that_the_model_cannot_take_is_named() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    recording = record(model, (torch.randn(4, 6),))
    (layer,) = (layer.name for layer in recording.graph.layers if layer.buffers)
    with pytest.raises(ProfileError, match=f"layer {layer} at micro-batch size 1: Expected more than 1 value"):
        measure(model, (torch.randn(4, 6),), micro_batches=(1, 4), budget_s=0, recording=recording)


def test_a_misspelt_optimizer_is_refused_before_anything_runs() -> None:
    class NeverRun(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("it ran")

    with pytest.raises(InputError, match="adamx"):
        measure(NeverRun(2, 2), (torch.randn(4, 2),), optimizer="adamx", budget_s=0)


def test_gradients_are_measured_where_they_are_switched_off() -> None:
    with torch.no_grad():
        profile = profile_of("gpt", micro_batches=(2,))
    assert sum(layer.costs[0].backward_ns for layer in profile.layers) > 0


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(ProfileError, match="no parameter"):
        measure(nn.Linear(2, 2).requires_grad_(False), (torch.randn(4, 2),), budget_s=0)


@pytest.mark.parametrize("sizes", [(), (0, 2), (-1,)])
def test_sizes_below_one_sample_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="micro-batch sizes"):
        measure(nn.Linear(2, 2), (torch.randn(4, 2),), micro_batches=sizes, budget_s=0)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(InputError, match="budget"):
        measure(nn.Linear(2, 2), (torch.randn(4, 2),), budget_s=-1)


def test_copies_of_a_model_have_one_graph_fingerprint() -> None:
    model = JOBS["mlp"].build()
    inputs = torch.randn(4, 64)
    first = measure(model, (inputs,), micro_batches=(4,), budget_s=0)
    second = measure(copy.deepcopy(model), (inputs,), micro_batches=(2,), budget_s=0)
    assert first.graph_fingerprint == second.graph_fingerprint
    assert first.fingerprint != second.fingerprint
