"""Small models written by hand, each of which does one thing that makes capturing hard."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.zoo.case import Arguments, Case

WIDTH = 8


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


class Around(nn.Module):
    """A block before and a block after ``middle``, so that there is something to cut."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.before, self.middle, self.after = Block(), middle, Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.middle(self.before(x)))


# Inputs and outputs that are no single tensor


class TakesDictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        x = self.first(batch["x"]) * batch["options"]["scale"]
        return {"y": self.second(x), "all": [x, {"mask": batch["mask"]}], "name": "dictionary"}


@dataclass
class Sample:
    x: Tensor
    mask: Tensor | None = None
    scale: float = 2.0


class TakesDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, sample: Sample) -> Sample:
        x = self.first(sample.x) * sample.scale
        if sample.mask is not None:
            x = x.masked_fill(sample.mask, 0.0)
        return Sample(x=self.second(x), scale=sample.scale + 1)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class TakesNamedTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, pair: Pair) -> Pair:
        left = self.first(pair.left)
        return Pair(left=left, right=self.second(left + pair.right))


class TakesKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor, *rest: Tensor, factor: float = 1.0, flip: bool = False, **extra: Tensor) -> Tensor:
        for tensor in rest:
            x = x + tensor
        x = self.first(x) * factor
        for name in sorted(extra):
            x = x + extra[name]
        return self.second(x.flip(-1) if flip else x)


class IntegerBoolComplex(nn.Module):
    """Integer, bool and complex tensors on the way, one of each in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.angles = nn.Parameter(torch.randn(WIDTH // 2))

    def forward(self, ids: Tensor, keep: Tensor) -> dict[str, Tensor]:
        x = functional.one_hot(ids % WIDTH, WIDTH).float()
        x = self.first(x) * keep[:, None]
        turned = torch.view_as_complex(x.view(-1, WIDTH // 2, 2)) * torch.polar(torch.ones(WIDTH // 2), self.angles)
        y = self.second(torch.view_as_real(turned).flatten(1))
        return {"y": y, "turned": turned, "chosen": y.argmax(-1), "is_large": y > 0}


# Parameters and modules that are not what they seem


class TiedAndShared(nn.Module):
    """A head tied to the embedding, one block called three times under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(20, WIDTH), Block(), nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.tokens.weight
        self.again = self.block
        self.last = linear()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.again(self.block(self.tokens(ids)))
        return self.head(self.last(self.block(x)))


class Normed(nn.Module):
    """Weight norm in both forms, spectral norm and an orthogonal parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.old = nn.utils.weight_norm(linear())  # type: ignore[no-untyped-call]
        self.new = parametrizations.weight_norm(linear())
        self.spectral = parametrizations.spectral_norm(linear())
        self.turn = parametrizations.orthogonal(linear())

    def forward(self, x: Tensor) -> Tensor:
        return self.turn(self.spectral(self.new(self.old(x).relu()).relu()).relu())


class Adapter(nn.Module):
    """A frozen projection with a trained low-rank part beside it, as LoRA adds it."""

    def __init__(self, wrapped: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.wrapped = wrapped.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(rank, WIDTH)), nn.Parameter(torch.randn(WIDTH, rank))
        self.scaling, self.merged = 0.5, False

    def forward(self, x: Tensor) -> Tensor:
        y = self.wrapped(x)
        return y if self.merged else y + (x @ self.a.T @ self.b.T) * self.scaling


class Hooked(nn.Module):
    """Hooks before and after a forward, on a gradient and on a module's backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Block(), linear(), Block()
        self.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.first.register_forward_hook(lambda module, args, output: output + args[0].mean())
        self.second.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
        self.third.down.weight.register_hook(lambda gradient: gradient * 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


class Recomputes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.compile(Block(), backend="eager", dynamic=True)
        self.second = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


# Effects


class WritesInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = linear(), linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * 1
        view = y[:, : WIDTH // 2]
        z = self.second(y.clone())
        view += 1
        y[:, 0].mul_(2)
        y[0] = z[0]
        return self.third(functional.relu(y, inplace=True)) + view.sum()


class RebindsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class FollowsMean(nn.Module):
    """Rebinds a buffer whose earlier value the backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Block(), Block()
        self.register_buffer("mean", torch.ones(WIDTH))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x) * self.mean
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return self.after(y - self.mean)


class Counts(nn.Module):
    """Counts its calls in Python and computes with the count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) / self.calls


class CountsInList(nn.Module):
    """Counts its calls where no attribute is ever set."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = linear(), [0]

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += 1
        return self.linear(x) / self.seen[0]


class Rebuilds(nn.Module):
    """Builds the modules that it calls in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU())
        return functional.linear(self.inner(x), self.weight)


class NoticesLoss(nn.Module):
    """Leaves an auxiliary loss on an attribute, which its parent adds up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.extra = linear(), None

    def forward(self, x: Tensor) -> Tensor:
        y = self.gate(x).softmax(-1)
        self.extra = y.square().mean()
        return x * y


class AddsLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([NoticesLoss(), Block(), NoticesLoss()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            x = block(x)
        return x, sum(block.extra for block in self.blocks if isinstance(block, NoticesLoss))


# Regions, modes and sizes


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = Block(), Block(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(x)
            with torch.autocast("cpu", enabled=False):
                y = self.third(y.float())
        return self.fourth(y.float() + fixed)


class Momentum(nn.Module):
    """A second encoder that follows the first, its parameters changed in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.follower, self.head = Block(), Block().requires_grad_(False), linear()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, theirs in zip(self.follower.parameters(), self.online.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
            wanted = self.follower(x)
        return self.head(self.online(x)) - wanted


class LoopsOverSizes(nn.Module):
    """Loops over a sequence and counts with its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(WIDTH, WIDTH), linear()

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        state = x.new_zeros(batch, width)
        states = []
        for step in range(time):
            state = self.cell(x[:, step], state)
            states.append(state)
        y = torch.stack(states, 1).reshape(batch * time, width)
        y = y + torch.arange(batch * time)[:, None] / (batch * math.sqrt(time))
        return self.head(y).view(batch, time, width)


class SwitchesByMode(nn.Module):
    """Functional dropout and noise in training, another scale in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.BatchNorm1d(WIDTH)
        self.last = linear()

    def forward(self, x: Tensor) -> Tensor:
        x = functional.dropout(functional.linear(x, self.weight), 0.5, training=self.training)
        x = self.norm(x) * (1.0 if self.training else 0.5)
        return self.last(x)


class ReturnsMoreInTraining(nn.Module):
    """Returns two tensors in training and one in evaluation, which no one graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.extra = Block(), Block(), linear()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.first(x)
        return (self.second(x), self.extra(x)) if self.training else self.second(x)


class Cube(torch.autograd.Function):
    """The square, with the gradient of another function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


class CallsAutogradFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.linear(x))


class MapsSamples(nn.Module):
    """A functional call of a module under vmap and grad."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        def energy(row: Tensor) -> Tensor:
            return self.linear(row).square().sum()

        return torch.func.vmap(torch.func.grad(energy))(x)


# Values read by Python


class ReadsAtRoot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(y) if y.mean() > 0 else self.second(-y)


class ReadsMask(nn.Module):
    """Picks rows by a mask: the sizes that follow are values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.mean(-1) > 0
        y = torch.zeros_like(x)
        y[chosen] = self.linear(x[chosen])
        return y + chosen.sum().item()


class Routes(nn.Module):
    """Experts that are skipped where no sample chose them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (shares.argmax(-1) == number).nonzero().squeeze(-1)
            if rows.numel() > 0:
                out = out.index_add(0, rows, expert(x[rows]) * shares[rows, number, None])
        return out


class Likelihood(nn.Module):
    """Makes a distribution, which looks at the values of its parameters to refuse some."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.mean, self.scale = Block(), linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        return -torch.distributions.Normal(self.mean(y), functional.softplus(self.scale(y))).log_prob(x)


class ThroughNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        order = torch.from_numpy(x.detach().numpy().argsort(-1, kind="stable"))
        return self.linear(x).gather(-1, order)


# How each is called


def rows(batch: int) -> Arguments:
    return (torch.randn(batch, WIDTH),), {}


def sequences(batch: int) -> Arguments:
    return (torch.randn(batch, 5, WIDTH),), {}


def token_rows(batch: int) -> Arguments:
    return (torch.randint(0, 20, (batch, 6)),), {}


def dictionary(batch: int) -> Arguments:
    given = {"x": torch.randn(batch, WIDTH), "mask": torch.rand(batch, WIDTH) > 0.5, "options": {"scale": 0.5}}
    return (given,), {}


def sample(batch: int) -> Arguments:
    return (Sample(x=torch.randn(batch, WIDTH), mask=torch.rand(batch, WIDTH) > 0.5),), {}


def pair(batch: int) -> Arguments:
    return (Pair(torch.randn(batch, WIDTH), torch.randn(batch, WIDTH)),), {}


def keywords(batch: int) -> Arguments:
    one, two, three = (torch.randn(batch, WIDTH) for _ in range(3))
    return (one, two), {"factor": 0.5, "flip": True, "bias": three}


def numbers(batch: int) -> Arguments:
    return (torch.randint(0, 50, (batch,)), torch.rand(batch) > 0.3), {}


def _case(name: str, build: Callable[[], nn.Module], draw: Callable[[int], Arguments] = rows) -> Case:
    return Case(name=name, family="hard case", build=build, draw=draw)


CASES: tuple[Case, ...] = (
    _case("dictionaries", TakesDictionary, dictionary),
    _case("dataclasses", TakesDataclass, sample),
    _case("named_tuples", TakesNamedTuple, pair),
    _case("keywords", TakesKeywords, keywords),
    _case("integer_bool_complex", IntegerBoolComplex, numbers),
    _case("tied_and_shared", TiedAndShared, token_rows),
    _case("parametrizations", Normed),
    _case("adapter", lambda: nn.Sequential(Block(), Adapter(linear()), Block())),
    _case("hooks", Hooked),
    _case("recompute", Recomputes),
    _case("compiled_module", Compiled),
    _case("in_place", WritesInPlace),
    _case("rebound_buffer", lambda: Around(RebindsBuffer())),
    _case("rebound_buffer_at_root", RebindsBuffer),
    _case("rebound_buffer_always", FollowsMean),
    _case("counter", lambda: Around(Counts())),
    _case("counter_at_root", Counts),
    _case("counter_in_list", lambda: Around(CountsInList())),
    _case("rebuilt_modules", lambda: Around(Rebuilds())),
    _case("losses_on_attributes", AddsLosses),
    _case("autocast_and_no_grad", Regions),
    _case("momentum_encoder", Momentum),
    _case("loops_over_sizes", LoopsOverSizes, sequences),
    _case("functional_dropout", SwitchesByMode),
    _case("more_in_training", ReturnsMoreInTraining),
    _case("autograd_function", lambda: Around(CallsAutogradFunction())),
    _case("functorch", lambda: Around(MapsSamples())),
    _case("value_at_root", ReadsAtRoot),
    _case("mask_indexing", lambda: Around(ReadsMask())),
    _case("routing", lambda: Around(Routes())),
    _case("distribution", Likelihood),
    _case("numpy", lambda: Around(ThroughNumpy())),
    _case(
        "transformer",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True), 2, enable_nested_tensor=False
        ),
        sequences,
    ),
    _case("lstm", lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), sequences),
)
