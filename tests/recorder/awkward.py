"""Small models that each do one thing that makes recording hard."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Pair(nn.Module):
    """Two linear layers around ``middle``."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.middle = middle
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class ReadsValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.a(x)
        return self.b(x)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


class Cube(torch.autograd.Function):
    """The square, with the gradient of another function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


class CallsAutogradFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.linear(x))


class CallsLocalAutogradFunction(nn.Module):
    """Applies an autograd function that no module of Python knows by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

        class Local(Cube):
            pass

        self.function = Local

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.linear(x))


class MapsOverSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: self.linear(row) * row.sum())(x)


class MakesModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.made = nn.Linear(4, 4, bias=False)
        self.made.weight = self.linear.weight
        return self.made(x)


class RebindsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class WritesBuffer(nn.Module):
    """Updates a buffer that its state_dict leaves out, between two linear layers that both read it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.mean.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return self.outer(y - self.mean) + self.mean


class Routes(nn.Module):
    """A mixture of experts that skips the experts no sample chose."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (weights.argmax(-1) == number).nonzero().squeeze(-1)
            if chosen.numel() > 0:
                out = out.index_add(0, chosen, expert(x[chosen]) * weights[chosen, number, None])
        return out


class Remembers(nn.Module):
    """Adds what it made of the last input, if its parent has not made it forget."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        y, self.last = (y if self.last is None else y + self.last.mean()), y
        return y


class MakesForget(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.remembers = Remembers()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.remembers.last = None
        return self.linear(self.remembers(x))


class Leaves(nn.Module):
    """Leaves a loss on an attribute of a module inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = nn.Linear(4, 4)
        self.inner.extra = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.linear(x))
        self.inner.extra = y.pow(2).mean()
        return y


class AddsUp(nn.Module):
    """Adds the losses that its blocks, one of them called twice, have left on attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Leaves() for _ in range(2))
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss = x.new_zeros(())
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
            loss = loss + block.inner.extra
        return self.last(x), loss + self.blocks[1].inner.extra


class DropsOut(nn.Module):
    """Calls dropout as a function, with the module's own mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(functional.dropout(functional.linear(x, self.weight), 0.5, self.training))


class NoisyInTraining(nn.Module):
    """Does more in training mode than in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.training:
            x = x + torch.randn_like(x)
        return self.norm(x)


class Sizes(nn.Module):
    """Computes with the batch size in every way that is affine or inverse in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, time, width = x.shape
        y = self.inner(x).reshape(batch * time, width)
        y = y + torch.arange(batch * time, dtype=y.dtype)[:, None] / batch
        y = self.outer(y).view(batch, time, width) / (batch * float(time))
        return y[torch.arange(batch), 0], y.sum() * (1.0 / batch)


class LoopsOverSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.outer(row) for row in self.inner(x)])


class WritesInPlace(nn.Module):
    """Writes to a tensor and to a view of it, while later layers read both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * 1
        flat = y.view(-1)
        z = self.second(x)
        y[:, 0] = z[:, 1]
        flat.mul_(2)
        return self.third(y) + z


class Regions(nn.Module):
    """Computes in a no-grad region that holds a layer, and in an autocast region that holds two."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)
        self.fourth = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.third(self.second(x))
        return self.fourth(y.float() + fixed)


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.linear(self.norm(self.linear(x)))))
