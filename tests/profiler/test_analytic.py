"""Profiles without the device: exact bytes and FLOPs, marked times."""

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.documents.profile import Profile, Source
from autopipe.documents.work import Sweep, Work
from autopipe.errors import ProfileError
from autopipe.hardware.lookup import find_device
from autopipe.hardware.specification import Platform
from autopipe.profiler import estimate, measure
from tests.models import JOBS, Block

A100 = find_device("a100-80-sxm")
# The figures do not matter for bytes; on a CPU, torch's own operators for the CPU run.
PROCESSOR = msgspec.structs.replace(A100, platform=Platform.CPU)


class TransformerLayer(nn.Module):
    """A layer as in GPT-3, with dropout after attention weights, attention and MLP."""

    def __init__(self, width: int, heads: int, *, flash: bool) -> None:
        super().__init__()
        self.heads, self.flash = heads, flash
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
        if self.flash:
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        else:
            weights = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
            mixed = functional.dropout(weights.softmax(-1), 0.1) @ v
        mixed = mixed.transpose(1, 2).reshape(batch, time, width)
        x = x + functional.dropout(self.out(mixed), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm2(x)))), 0.1)


def saved_by(profile: Profile, layers: range) -> int:
    """Bytes that these layers save, values from inside and from before them included."""
    own = sum(profile.layers[index].costs[0].saved_bytes for index in layers)
    carried = [value for value in profile.values if value.saved_at in layers and not value.producer_saves]
    return own + sum(value.bytes[0] for value in carried)


@pytest.mark.parametrize("flash", [False, True])
def test_a_layer_of_gpt3_saves_what_korthikanti_counts(flash: bool) -> None:
    """Reducing activation recomputation in large transformer models, arXiv 2205.05198, equation 2."""
    s, b, h, a = 2048, 1, 12288, 96
    with torch.device("meta"):
        model = nn.Sequential(*(TransformerLayer(h, a, flash=flash) for _ in range(3))).half()
        x = torch.empty(b, s, h, dtype=torch.float16)
    profile = estimate(model, (x,), device=A100, micro_batches=(b,))
    part = len(profile.layers) // 3
    saved = saved_by(profile, range(part, 2 * part))
    assert saved == pytest.approx(34 * s * b * h + (0 if flash else 5 * a * s**2 * b), rel=0.002)
    assert len({layer.group for layer in profile.layers}) == part
    # Recompute runs the device's operators too, so that every layer can.
    assert all(layer.costs[0].recompute_ns for layer in profile.layers)


@pytest.mark.parametrize("name", JOBS)
def test_bytes_and_flops_are_those_of_a_run_with_memory(name: str) -> None:
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(4)
    fake = estimate(model, (inputs,), target=target, loss_fn=job.loss, device=PROCESSOR)
    real = measure(model, (inputs,), target=target, loss_fn=job.loss, budget_s=0)
    assert memory(fake) == memory(real)
    assert fake.values == real.values
    assert fake.micro_batches == real.micro_batches
    assert flops(fake) == flops(real)


@pytest.mark.parametrize("name", ["mlp", "gpt", "unet"])
def test_bytes_under_autocast_are_those_of_a_run_with_memory(name: str) -> None:
    """Without the CNN: torch's fake batch norm keeps statistics in bfloat16, the CPU's own in float32."""
    job = JOBS[name]
    model = job.build()
    inputs, target = job.draw(4)
    with torch.autocast("cpu", torch.bfloat16):
        fake = estimate(model, (inputs,), target=target, loss_fn=job.loss, device=PROCESSOR)
        real = measure(model, (inputs,), target=target, loss_fn=job.loss, budget_s=0)
    assert fake.autocast == real.autocast == "bfloat16"
    assert memory(fake) == memory(real)
    assert fake.values == real.values
    assert flops(fake) == flops(real)


def test_casts_of_weights_are_saved_by_every_micro_batch() -> None:
    model, x = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)), torch.randn(4, 64)
    with torch.autocast("cpu", torch.bfloat16):
        profile = measure(model, (x,), loss_fn=lambda output: output.sum(), budget_s=0)
    # In two bytes each: the input; the weight of the layer that sends a gradient back.
    assert [layer.costs[-1].saved_bytes for layer in profile.layers] == [2 * 4 * 64, 2 * 32 * 8]
    assert [(value.bytes[-1], value.saved_at) for value in profile.values] == [(2 * 4 * 32, 1)]


def total_flops(operators: tuple[Work, ...]) -> int:
    return sum(work.flops * work.calls for work in operators)


def flops(profile: Profile) -> dict[tuple[int, Sweep, int], int]:
    """Arithmetic by layer, sweep and micro-batch size; the input-gradient part is counted without memory only."""
    return {
        (work.layer, work.sweep, work.micro_batch): total_flops(work.operators)
        for work in profile.work
        if work.sweep is not Sweep.INPUT_GRAD and total_flops(work.operators)
    }


def memory(profile: Profile) -> list[object]:
    costs = [layer.costs for layer in profile.layers] + [profile.loss]
    names = [name for name in costs[0][0].__struct_fields__ if name.endswith("_bytes")]
    state = [(layer.parameter_bytes, layer.optimizer_bytes, layer.buffer_bytes) for layer in profile.layers]
    return [state, [[getattr(cost, name) for name in names] for row in costs for cost in row]]


def test_every_cost_is_marked_and_splits_its_backward() -> None:
    job = JOBS["gpt"]
    inputs, target = job.draw(2)
    profile = estimate(job.build(), (inputs,), target=target, loss_fn=job.loss, device=A100)
    costs = [cost for layer in profile.layers for cost in layer.costs] + list(profile.loss)
    assert {cost.source for cost in costs} == {Source.ROOFLINE}
    assert all(cost.input_grad_ns + cost.weight_grad_ns == cost.backward_ns for cost in costs)
    # Nothing enters the first layer that needs a gradient.
    assert profile.layers[0].costs[0].input_grad_ns == 0 < profile.layers[0].costs[0].weight_grad_ns


def test_the_model_is_left_without_memory_and_gradients() -> None:
    with torch.device("meta"):
        model = nn.Linear(10**6, 10**6)
        x = torch.empty(3, 10**6)
    profile = estimate(model, (x,), device=A100)
    assert profile.layers[0].parameter_bytes == 4 * (10**12 + 10**6)
    assert model.weight.is_meta
    assert model.weight.grad is None


def test_work_of_a_linear_layer_is_three_products() -> None:
    model = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(16, 8, bias=False))
    profile = estimate(model, (torch.randn(4, 32),), device=A100, micro_batches=(4,))
    second = {work.sweep: total_flops(work.operators) for work in profile.work if work.layer == 1}
    product = 2 * 4 * 16 * 8
    assert second == {"forward": product, "backward": 2 * product, "input_grad": product}


def test_attention_is_counted_on_a_cpu_as_on_a_gpu() -> None:
    one, other = (
        flops(estimate(Block(64, 2), (torch.randn(2, 16, 64),), device=device, micro_batches=(2,)))
        for device in (PROCESSOR, A100)
    )
    assert one == other


class ReadsValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[: int(x.argmax())]


def test_a_layer_that_needs_values_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), ReadsValues())
    with pytest.raises(ProfileError, match=r"layer .* needs the values of a tensor"):
        estimate(model, (torch.tensor([[1.0, 2.0, 3.0, 4.0]]),), device=A100, micro_batches=(1,))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ProfileError, match="requires a gradient"):
        estimate(nn.Linear(2, 2).requires_grad_(False), (torch.randn(1, 2),), device=A100)
