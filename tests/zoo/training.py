"""A captured model is cut into stages and trained for two steps beside the plain model."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autopipe.documents.graph import Graph
from autopipe.executor.layout import Layout
from autopipe.executor.microbatch import cut, micro_batch_sizes
from autopipe.executor.pipeline import Pipeline
from autopipe.executor.seeds import draw_seed
from autopipe.recorder import Recording, record
from autopipe.recorder.functions import is_random
from tests.reference import differences, exempt
from tests.zoo.case import Case

BATCH, MICRO_BATCHES = 4, 2
SEED = 7


class Sown(TorchFunctionMode):
    """Seeds the random calls of a plain forward as a pipeline does those of the nodes ``draws``, in their order."""

    def __init__(self, draws: Sequence[str], step: int, micro_batch: int) -> None:
        super().__init__()
        self.left = list(draws)
        self.place = step, micro_batch

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.left and is_random(func):
            torch.manual_seed(draw_seed(SEED, *self.place, self.left.pop(0)))
        return func(*args, **(kwargs or {}))


def built(case: Case) -> nn.Module:
    """Return the model of a case, the same one each time."""
    torch.manual_seed(0)
    return case.build().train()


def recorded(case: Case) -> tuple[nn.Module, Recording]:
    """Return the model of a case and its recording at the size of a micro-batch."""
    model = built(case)
    args, kwargs = case.draw(BATCH // MICRO_BATCHES)
    return model, record(model, args, kwargs)


def random_bounds(graph: Graph, stages: int, seed: int = 0) -> tuple[int, ...] | None:
    """Return legal bounds of ``stages`` stages drawn at random; None where there are too few."""
    free = _legal(graph)
    if len(free) < stages - 1:
        return None
    return (
        0,
        *sorted(random.Random(f"{graph.model} {stages} {seed}").sample(free, stages - 1)),
        len(graph.layers),
    )


def _legal(graph: Graph) -> list[int]:
    forbidden = {each.position for each in graph.forbidden_cuts}
    return [place for place in range(1, len(graph.layers)) if place not in forbidden]


def compare(case: Case, bounds: Sequence[int]) -> list[str]:
    """Record a model, train its stages and the plain model for two steps of SGD, and return what differs.

    In the first step everything is equal bit for bit but for sums whose order a pipeline must change; in the
    second, weights that such sums have reached are close.
    """
    stages = len(bounds) - 1
    plain = built(case)
    model, recording = recorded(case)
    graph = recording.graph
    layout = Layout(
        bounds=tuple(bounds), stage_ranks=tuple(range(stages)), schedule="1f1b", micro_batches=MICRO_BATCHES
    )
    loss = None if case.returns_loss else case.loss
    pipe = Pipeline(recording.module, graph, layout, loss_fn=loss, ranks=stages, seed=SEED)
    draws = [name for layer in graph.layers for name in layer.draws]
    everything = {name for name, _ in model.named_parameters()}
    exempted = exempt(graph, layout.bounds, layout.stage_ranks, recording.module)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, plain)]
    found = []
    try:
        for step in range(2):
            args, kwargs = case.draw(BATCH)
            torch.manual_seed(step)
            mine = pipe.step(*args, **kwargs)
            torch.manual_seed(step)
            wanted = plain_step(case, plain, args, kwargs, step, draws)
            if not (torch.allclose(mine, wanted, rtol=1e-5) if exempted else torch.equal(mine, wanted)):
                found.append(f"the loss of step {step}, {mine} instead of {wanted}")
            changed = everything if step and exempted else exempted
            found += [f"{name} in step {step}" for name in differences(model, plain, changed, rtol=1e-4, atol=1e-6)]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    finally:
        pipe.close()
    return found


def plain_step(
    case: Case, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], step: int, draws: Sequence[str]
) -> Tensor:
    """Run forward and backward of every micro-batch and return the sum of the losses."""
    sizes = micro_batch_sizes(BATCH, MICRO_BATCHES)
    total: Tensor | None = None
    for index, ((inputs, keywords), size) in enumerate(zip(cut((args, kwargs), sizes), sizes, strict=True)):
        with Sown(draws, step, index):
            output = model(*inputs, **keywords)
        loss = case.loss(output) * (size / BATCH)
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total
