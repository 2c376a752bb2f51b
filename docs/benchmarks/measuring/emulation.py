"""Emulated devices: layers that sleep as long as the layers of a profile take, on devices and links of any speed.

What passes between two layers is a few KiB, real, and carries the moment at which it was made. Where a stage begins
behind a link with a bandwidth, it waits until the profile's bytes would have come over that link; messages over one
link follow each other.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopipe
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Cost, Profile, ProfiledValue
from autopipe.hardware.cluster import Cluster, Device, Link

NUMBERS = 512  # of a sample between layers: 4 KiB in float64
MILLISECOND = 1e6


class EmulatedLink:
    """The way from one device to this one."""

    def __init__(self, link: Link) -> None:
        self._link, self._free_at = link, 0.0

    def wait(self, sent_at: float, size_bytes: int) -> None:
        """Return when ``size_bytes`` sent at a moment have arrived."""
        self._free_at = max(sent_at, self._free_at) + self._link.transmit_ns(size_bytes) / 1e9
        _sleep_until(self._free_at + (self._link.latency_ns or 0) / 1e9)


class _Compute(torch.autograd.Function):
    """Sleeps for F, and for I in its backward; what it returns says when it was made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "SleepingLayer") -> Tensor:
        ctx.layer, ctx.size = layer, len(x)
        if layer.device is None:
            return x + 0.0
        if layer.arrival is not None:
            layer.arrival.wait(float(x[0, 0]), layer.input_bytes[len(x)])
        layer.sleep(layer.times[len(x)].forward_ns)
        return torch.full_like(x, time.monotonic())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        layer = ctx.layer
        if layer.device is None:
            return gradient + 0.0, None
        if layer.back is not None:
            layer.back.wait(float(gradient[0, 0]), layer.output_bytes[ctx.size])
        layer.sleep(layer.times[ctx.size].input_grad_ns)
        return torch.full_like(gradient, time.monotonic()), None


class _Weight(torch.autograd.Function):
    """Sleeps for W in its backward."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, layer: "SleepingLayer", size: int) -> Tensor:
        ctx.layer, ctx.size = layer, size
        return weight + 0.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.layer.device is not None:
            ctx.layer.sleep(ctx.layer.times[ctx.size].weight_grad_ns)
        return gradient + 0.0, None, None


class SleepingLayer(nn.Module):
    """A layer that takes as long as ``times`` say of each micro-batch size; none until it is on a ``device``.

    ``arrival`` and ``back`` are the links over which its input, and the gradient of its output, come; None where they
    come at once.
    """

    def __init__(self, times: dict[int, Cost], input_bytes: dict[int, int], output_bytes: dict[int, int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.times, self.input_bytes, self.output_bytes = times, input_bytes, output_bytes
        self.device: Device | None = None
        self.arrival: EmulatedLink | None = None
        self.back: EmulatedLink | None = None

    def sleep(self, duration_ns: int) -> None:
        """Take as long as what takes ``duration_ns`` on the profiled device."""
        time.sleep(duration_ns / 1e9 / self.device.speed)

    def forward(self, x: Tensor) -> Tensor:
        return _Compute.apply(x, self) + _Weight.apply(self.weight, self, len(x))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).mean()


def draw(batch: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(2, batch, NUMBERS, dtype=torch.float64).unbind()


def emulated(profile: Profile, *, ranks: int, share_ms: float) -> Profile:
    """Return the profile as that of a row of layers that can be emulated, scaled to a mean time, with its graph.

    Times, sizes and parameters stay in proportion. What crosses from one layer to the next is all that crosses there in
    the model, skips included; the loss is part of the last layer, and the first has no gradient of its input.

    Parameters
    ----------
    share_ms : float
        What forward and backward of one of ``ranks`` equal shares take at the smallest micro-batch.
    """
    whole = sum(layer.costs[0].forward_ns + layer.costs[0].backward_ns for layer in profile.layers)
    scale = share_ms * MILLISECOND * ranks / whole
    last = len(profile.layers) - 1
    layers = []
    for index, layer in enumerate(profile.layers):
        costs = []
        for cost, loss_cost in zip(layer.costs, profile.loss, strict=True):
            forward = cost.forward_ns + (loss_cost.forward_ns if index == last else 0)
            backward = cost.backward_ns + (loss_cost.backward_ns if index == last else 0)
            weight = backward if index == 0 else min(backward, cost.weight_grad_ns or 0)
            costs.append(_cost(*(round(scale * part) for part in (forward, backward - weight, weight))))
        held = {"parameter_bytes": layer.parameter_bytes, "gradient_bytes": 0, "optimizer_bytes": 0, "buffer_bytes": 0}
        layers.append(msgspec.structs.replace(layer, costs=tuple(costs), optimizer_ns=0, **held))
    nothing = tuple(_cost(0, 0, 0) for _ in profile.loss)
    left_out = dict.fromkeys(("shared", "whole", "work", "ranks", "links", "forbidden_cuts"), ())
    row = {"layers": tuple(layers), "values": _row(profile), "loss": nothing, **left_out}
    made = msgspec.structs.replace(profile, **row, link_latency_ns=None, link_bytes_per_s=None)
    graph = autopipe.capture(sleeping(made), draw(max(made.micro_batches))[0], leaf=(SleepingLayer,))
    return msgspec.structs.replace(made, graph=graph, graph_fingerprint=graph.fingerprint)


def _cost(forward_ns: int, input_ns: int, weight_ns: int) -> Cost:
    parts = {"forward_ns": forward_ns, "input_grad_ns": input_ns, "weight_grad_ns": weight_ns}
    return Cost(**parts, backward_ns=input_ns + weight_ns, saved_bytes=0, transient_bytes=0, source="measured")


def _row(profile: Profile) -> tuple[ProfiledValue, ...]:
    """Return one value from each layer to the next, as large as all that crosses there."""
    row = []
    for cut in range(1, len(profile.layers)):
        crossing = [value.bytes for value in profile.values if value.producer < cut <= max(value.consumers)]
        sizes = tuple(sum(sizes) for sizes in zip(*crossing, strict=True)) or (0,) * len(profile.micro_batches)
        row.append(ProfiledValue(name=f"x{cut}", producer=cut - 1, consumers=(cut,), requires_grad=True, bytes=sizes))
    return tuple(row)


def sleeping(profile: Profile) -> nn.Sequential:
    """Return the layers of an `emulated` profile, which sleep as it says."""
    sizes = profile.micro_batches
    crossing = [(0,) * len(sizes), *(value.bytes for value in profile.values), (0,) * len(sizes)]
    return nn.Sequential(
        *(
            SleepingLayer(
                *(dict(zip(sizes, row, strict=True)) for row in (layer.costs, crossing[index], crossing[index + 1]))
            )
            for index, layer in enumerate(profile.layers)
        )
    )


@contextlib.contextmanager
def running(profile: Profile, plan: Plan, cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Let this rank run an `emulated` profile's layers as planned, on these devices: yield its step."""
    model = sleeping(profile)
    place(model, plan, cluster, dist.get_rank())
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=loss)
    x, y = draw(plan.batch_size)
    yield lambda: pipe.step(x, target=y)
    pipe.close()


def place(model: nn.Sequential, plan: Plan, cluster: Cluster, device: int) -> None:
    """Let the layers of ``model`` be as fast as ``device``, and messages to its stages as fast as their links."""
    held = [plan.device_order[stage.rank] if plan.device_order else stage.rank for stage in plan.stages]
    ways: dict[int, EmulatedLink] = {}

    def way(source: int) -> EmulatedLink | None:
        link = cluster.link(source, device)
        if source == device or link.bytes_per_s is None:
            return None
        return ways.setdefault(source, EmulatedLink(link))

    for layer in model:
        layer.device, layer.arrival, layer.back = cluster.devices[device], None, None
    for index, stage in enumerate(plan.stages):
        if held[index] == device:
            if index > 0:
                model[stage.begin].arrival = way(held[index - 1])
            if index + 1 < len(held):
                model[stage.end - 1].back = way(held[index + 1])


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
