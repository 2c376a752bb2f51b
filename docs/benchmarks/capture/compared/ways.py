"""Other ways to capture a model, wrapped so that the same judge can compare them."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from tests.zoo.judge import Captured, by_autopipe


def by_symbolic_trace(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Trace a model with ``torch.fx.symbolic_trace``; arguments that the call leaves out keep their defaults."""
    signature = inspect.signature(model.forward)
    given = signature.bind(*args, **kwargs).arguments
    fixed = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name not in given and parameter.default is not inspect.Parameter.empty
    }
    traced = fx.symbolic_trace(model, concrete_args=fixed)
    return Captured(call=traced, parameters=_named(traced), train=traced.train)


def by_export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Export a model with ``torch.export``, not strict, the batch dynamic where it can be."""
    size = next(leaf.shape[0] for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))

    def dimensions(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {0: torch.export.Dim.AUTO} if leaf.dim() and leaf.shape[0] == size else {}

    shapes = {
        name: pytree.tree_map(dimensions, value)
        for name, value in inspect.signature(model.forward).bind(*args, **kwargs).arguments.items()
    }
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    module = program.module()

    def train(mode: bool) -> None:
        # An exported module holds one mode: where it will not say so, the comparison does.
        if mode is not True:
            module.eval()

    return Captured(call=module, parameters=_named(module), train=train)


def by_pipelining(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Capture a model as ``torch.distributed.pipelining`` does, split in the middle of its longest list of modules."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    lists = [
        (len(module), name)
        for name, module in model.named_modules()
        if name and isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1
    ]
    children = [name for name, _ in model.named_children()]
    longest = max(lists, default=(0, ""))[1]
    middle = f"{longest}.{len(model.get_submodule(longest)) // 2}" if longest else children[len(children) // 2]
    pipe = pipeline(model, mb_args=args, mb_kwargs=kwargs, split_spec={middle: SplitPoint.BEGINNING})
    # Its own executor detaches what passes between stages, because its runtime sends the gradients itself.
    pipe.executor = fx.Interpreter(pipe.split_gm)
    stages = [pipe.get_stage_module(index) for index in range(pipe.num_stages)]
    named: dict[str, Tensor] = {}
    for stage in stages:
        named.update(_named(stage))

    def train(mode: bool) -> None:
        for stage in stages:
            stage.train(mode)

    return Captured(call=pipe, parameters=named, train=train, keeps_containers=False)


def _named(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters(remove_duplicate=False))


WAYS: dict[str, Callable[..., Captured]] = {
    "autopipe": by_autopipe,
    "torch.fx.symbolic_trace": by_symbolic_trace,
    "torch.export": by_export,
    "torch.distributed.pipelining": by_pipelining,
}
