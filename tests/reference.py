"""The plain training step that every pipeline is compared with, and the comparison."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.documents.graph import Graph
from autopipe.executor.microbatch import batch_of, cut, micro_batch_sizes
from autopipe.executor.tied import find_ties
from autopipe.schedules.edges import stage_of


def plain_step(
    model: nn.Module, loss_of: Callable[[Any, Any], Tensor], args: tuple[Any, ...], target: Any, micro_batches: int
) -> Tensor:
    """Run ``(loss_fn(model(x_i), y_i) * share_i).backward()`` for i = 0..m-1 and return the sum of the losses."""
    batch = batch_of(args)
    sizes = micro_batch_sizes(batch, micro_batches)
    total = None
    for inputs, wanted, size in zip(cut(args, sizes), cut(target, sizes), sizes, strict=True):
        loss = loss_of(model(*inputs), wanted) * (size / batch)
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


def exempt(
    graph: Graph, bounds: Sequence[int], stage_ranks: Sequence[int], module: nn.Module | None = None
) -> set[str]:
    """Return the parameters whose gradients pass through a sum whose order a pipeline must change.

    These are the parameters tied over ranks or over stages of one rank (whose backwards other micro-batches'
    may come between), and those upstream of a tensor with three or more readers on more than one stage (a sum
    of two is the same in either order).
    """
    owner = stage_of(bounds)
    names = {tie.name for tie in find_ties(graph, bounds, stage_ranks)}
    names |= {name for name, layers in graph.tied().items() if len({owner[layer] for layer in layers}) > 1}
    reads: Counter[str] = Counter()
    for node in graph.nodes:
        # A module that is called whole may read its input in several places; torch's own simple ones read it once.
        called = module.get_submodule(node.target) if module is not None and node.op == "call_module" else None
        simple = called is None or (type(called).__module__.startswith("torch.nn") and not list(called.children()))
        for name in _references((node.arguments, node.keywords)):
            reads[name] += 1 if simple else 2
    for value in graph.values:
        readers = {owner[layer] for layer in value.consumers}
        if value.requires_grad and readers - {owner[value.producer]} and reads[value.name] > 2:
            names.update(name for layer in graph.layers[: value.producer + 1] for name in layer.parameters)
    return names


def _references(value: Any) -> Iterator[str]:
    """Yield the names of the nodes that encoded arguments refer to, one for each time."""
    if isinstance(value, dict):
        if set(value) == {"node"}:
            yield value["node"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _references(item)


def differences(
    model: nn.Module, plain: nn.Module, exempted: set[str], *, rtol: float = 1e-5, atol: float = 1e-7
) -> list[str]:
    """Return the names of gradients and buffers that are not equal: bit for bit, or close where exempted."""
    found = []
    wanted = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        mine, theirs = parameter.grad, wanted[name].grad
        if mine is None or theirs is None:
            same = mine is None and theirs is None
        elif name in exempted:
            same = torch.allclose(mine, theirs, rtol=rtol, atol=atol)
        else:
            same = torch.equal(mine, theirs)
        if not same:
            found.append(name)
    for (name, mine), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
        if not torch.equal(mine, theirs):
            found.append(name)
    return found


def even_bounds(layers: int, stages: int) -> tuple[int, ...]:
    """Return bounds of ``stages`` stages with nearly equal numbers of layers."""
    return tuple(round(layers * stage / stages) for stage in range(stages + 1))
