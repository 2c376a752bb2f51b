"""A random model under a random plan: losses, every gradient, norms and parameters beside the plain model's."""

import contextlib
import copy
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autopipe.executor.layout import Layout
from autopipe.executor.microbatch import cut, micro_batch_sizes
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.sampler import replica_sizes
from autopipe.executor.seeds import Seeds, seed_draws
from autopipe.recorder import Recording, rebuild, record
from autopipe.schedules.named import VIRTUAL, placement
from tests.reference import differences, exempt

STEPS = 3
_TOLERANCES = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-7},
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-3},
}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam")


class Net(nn.Module):
    """A random row of layers over (batch, time, width): tokens or vectors in, skips and ties between."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.width = width = draw.choice((4, 8))
        self.tokens = nn.Embedding(11, width) if draw.random() < 0.5 else None
        self.kinds = [draw.choice(_KINDS) for _ in range(draw.randint(4, 9))]
        self.layers = nn.ModuleList(_layer(kind, width) for kind in self.kinds)
        self.skips = [draw.randrange(index + 1) if draw.random() < 0.25 else None for index in range(len(self.kinds))]
        self.head = nn.Linear(width, 11, bias=False)
        if self.tokens is not None and draw.random() < 0.5:
            self.head.weight = self.tokens.weight
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        if len(linears) > 1 and draw.random() < 0.25:
            linears[-1].weight = linears[0].weight
        for parameter in self.parameters():
            if draw.random() < 0.15:
                parameter.requires_grad_(False)
        self.head.weight.requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) if self.tokens is not None else x
        held = [x]
        for kind, layer, skip in zip(self.kinds, self.layers, self.skips, strict=True):
            x = layer(x.transpose(1, 2)).transpose(1, 2) if kind in ("batch_norm", "convolution") else layer(x)
            if skip is not None:
                x = x + held[skip] if skip % 2 else torch.where(held[skip] > 0, x, held[skip])
            held.append(x)
        return self.head(x)


_KINDS = ("linear", "linear", "gelu", "in_place", "norm", "batch_norm", "dropout", "attention", "convolution", "deep")


def _layer(kind: str, width: int) -> nn.Module:
    match kind:
        case "linear":
            return nn.Linear(width, width)
        case "gelu":
            return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        case "in_place":
            return nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True))
        case "norm":
            return nn.LayerNorm(width)
        case "batch_norm":
            return nn.BatchNorm1d(width)
        case "dropout":
            return nn.Dropout(0.2)
        case "attention":
            return nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        case "convolution":
            return nn.Conv1d(width, width, 3, padding=1)
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is drawn beside the model."""

    ranks: int
    schedule: str
    virtual: int
    bounds: tuple[int, ...]
    micro_batches: int
    batch: int
    recompute: tuple[str, ...]
    dtype: torch.dtype
    optimizer: str
    norm_type: float
    replicas: int

    def layout(self) -> Layout:
        return Layout(
            bounds=self.bounds,
            stage_ranks=placement(self.schedule, ranks=self.ranks, virtual=self.virtual),
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            virtual_stages=self.virtual,
            recompute=self.recompute,
            replicas=self.replicas,
        )


def draw_trial(draw: random.Random, recording: Recording, dtype: torch.dtype, *, is_replicated: bool) -> Trial:
    """Return a random plan for a model, with as many stages as it has places for."""
    graph = recording.graph
    forbidden = {cut.position for cut in graph.forbidden_cuts}
    places = [place for place in range(1, len(graph.layers)) if place not in forbidden]
    schedule = draw.choice(SCHEDULES)
    virtual = 2 if schedule in VIRTUAL else 1
    ranks = draw.randint(1, 4)
    while ranks * virtual > len(places) + 1 and ranks > 1:
        ranks -= 1
    if ranks * virtual > len(places) + 1:
        schedule, virtual = "1f1b", 1
    micro_batches = draw.randint(1, 6)
    share = draw.choice((0.0, 0.0, 0.5, 1.0))
    names = [layer.name for layer in graph.layers]
    return Trial(
        ranks=ranks,
        schedule=schedule,
        virtual=virtual,
        bounds=(0, *sorted(draw.sample(places, ranks * virtual - 1)), len(graph.layers)),
        micro_batches=micro_batches,
        batch=draw.randint(micro_batches, 3 * micro_batches),
        recompute=tuple(name for name in names if draw.random() < share),
        dtype=dtype,
        optimizer=draw.choice(OPTIMIZERS),
        norm_type=draw.choice((2.0, float("inf"))),
        # In float64, so that the other order in which replicas are summed is told from a wrong number.
        replicas=draw.choice((1, 2, 3)) if is_replicated else 1,
    )


def loss_fn(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def check(seed: int) -> tuple[str, list[str]]:
    """Train one random model under one random plan; return what was drawn, and what differs.

    A gradient whose sum a pipeline must take in another order is compared within a tolerance. Where a normalisation
    follows, its terms cancel: a bias before BatchNorm has a gradient of zero, and what is found is the rounding of its
    terms alone. No tolerance relative to such a gradient tells rounding from error; more bits do. So a draw in float32
    in which only gradients of that kind differ is judged by the same draw in float64, where they must be within 1e-9.
    """
    drawn, found, exempted = _train(seed)
    of_order = {f"gradient of {name} in step {step}" for name in exempted for step in range(STEPS)}
    if found and set(found) <= of_order:
        return _train(seed, in_float64=True)[:2]
    return drawn, found


def _train(seed: int, *, in_float64: bool = False) -> tuple[str, list[str], set[str]]:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = draw.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    replicated, dtype = dtype is torch.float64, torch.float64 if in_float64 else dtype
    model = Net(draw).to(dtype)
    example = _inputs(model, 4, dtype)
    recording = record(model, (example,))
    trial = draw_trial(draw, recording, dtype, is_replicated=replicated)
    plain_model = copy.deepcopy(model)
    exempted = exempt(recording.graph, trial.bounds, trial.layout().stage_ranks, recording.module)
    if trial.replicas > 1:  # their gradients are added up after those of their micro-batches
        exempted = {name for name, _ in model.named_parameters()}
    reference, seeds = _seeded(plain_model, recording, seed)
    ranks = trial.ranks * trial.replicas
    pipe = Pipeline(recording.module, recording.graph, trial.layout(), loss_fn=loss_fn, ranks=ranks, seed=seed)
    found: list[str] = []
    optimizers = [_optimizer(each, trial, exact=not exempted) for each in (pipe, plain_model)]
    try:
        for step in range(STEPS):
            x = _inputs(model, trial.batch, trial.dtype)
            y = torch.randint(0, 11, (trial.batch, x.shape[1]))
            seeds.step = step
            found += _compare_step(pipe, model, plain_model, reference, seeds, (x, y), trial, exempted)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                for (name, mine), theirs in zip(model.named_parameters(), plain_model.parameters(), strict=True):
                    if not (_close(mine, theirs) if exempted else torch.equal(mine, theirs)):
                        found.append(f"parameter {name} after step {step}")
                    if exempted:
                        # So that each step is compared from equal parameters.
                        theirs.copy_(mine)
    finally:
        pipe.close()
    return f"seed {seed}: {trial}, {model.kinds}, exempt {sorted(exempted)}", found, exempted


def _compare_step(
    pipe: Pipeline,
    model: nn.Module,
    plain: nn.Module,
    reference: nn.Module,
    seeds: Seeds,
    batch: tuple[Tensor, Tensor],
    trial: Trial,
    exempted: set[str],
) -> list[str]:
    found = []
    loss, wanted = pipe.step(batch[0], target=batch[1]), _plain_step(reference, seeds, batch, trial)
    if not (torch.equal(loss, wanted) if trial.replicas == 1 else _close(loss, wanted)):
        found.append(f"loss of step {seeds.step}: {loss} instead of {wanted}")
    names = differences(model, plain, exempted, **_TOLERANCES[trial.dtype])
    found += [f"gradient of {name} in step {seeds.step}" for name in names]
    norm = pipe.clip_grad_norm_(0.5, trial.norm_type)
    wanted = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5, trial.norm_type)
    if not (_close(norm, wanted) if exempted else torch.equal(norm, wanted)):
        found.append(f"norm of step {seeds.step}: {norm} instead of {wanted}")
    return found


def _plain_step(reference: nn.Module, seeds: Seeds, batch: tuple[Tensor, Tensor], trial: Trial) -> Tensor:
    """Run the micro-batches of all replicas, one after the other; buffers are left as the first replica leaves them."""
    total: Tensor | None = None
    own_sizes = replica_sizes(trial.batch, trial.replicas)
    for replica, part in enumerate(cut(batch, own_sizes)):
        before = [buffer.clone() for buffer in reference.buffers()] if replica > 0 else []
        sizes = micro_batch_sizes(own_sizes[replica], trial.micro_batches)
        for i, ((x, y), size) in enumerate(zip(cut(part, sizes), sizes, strict=True)):
            seeds.micro_batch = replica * trial.micro_batches + i
            loss = loss_fn(reference(x), y) * (size / trial.batch)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        for buffer, kept in zip(reference.buffers() if before else (), before, strict=True):
            buffer.copy_(kept)
    assert total is not None
    return total


def _seeded(plain: nn.Module, recording: Recording, seed: int) -> tuple[nn.Module, Seeds]:
    """Return the plain model, made to draw from the pipeline's seeds if it draws at all."""
    seeds = Seeds(torch.device("cpu"), contextlib.nullcontext())
    seeds.seed = seed
    names = {name for layer in recording.graph.layers for name in layer.draws}
    if not names:
        return plain, seeds
    reference = rebuild(plain, recording.graph)
    seed_draws(reference, names, seeds)
    return reference, seeds


def _optimizer(owner: Any, trial: Trial, *, exact: bool) -> torch.optim.Optimizer:
    # Where sums are reordered, an optimizer that divides by the gradient's size would magnify the rounding.
    name = trial.optimizer if exact else "SGD"
    return getattr(torch.optim, name)(list(owner.parameters()), lr=0.01)


def _inputs(model: Net, batch: int, dtype: torch.dtype) -> Tensor:
    if model.tokens is not None:
        return torch.randint(0, 11, (batch, 5))
    return torch.randn(batch, 5, model.width, dtype=dtype)


def _close(mine: Tensor, theirs: Tensor) -> bool:
    tolerance = 1e-2 if mine.dtype is torch.bfloat16 else 1e-5
    return torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance / 10)
