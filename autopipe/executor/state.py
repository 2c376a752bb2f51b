"""The state of stages and of the whole model, under the original names."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.documents.graph import Graph
from autopipe.errors import MismatchError
from autopipe.executor.sharded import like, whole
from autopipe.recorder.example import map_tensors
from autopipe.transport.endpoint import Endpoint


def stage_state(module: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """Return a stage's state_dict with every name that the model has for each tensor."""
    state = dict(module.state_dict())
    for parameter in graph.parameters:
        names = (parameter.name, *parameter.aliases)
        known = next((name for name in names if name in state), None)
        if known is not None:
            for name in names:
                state.setdefault(name, state[known])
    return state


def gather_state(part: Mapping[str, Tensor], graph: Graph, endpoint: Endpoint | None) -> dict[str, Tensor]:
    """Return the whole model's state on the CPU, from every rank's part; all ranks call it.

    Without an endpoint ``part`` is the whole already.
    """
    state = {name: whole(tensor.detach()).cpu() for name, tensor in part.items()}
    if endpoint is not None:
        content = io.BytesIO()
        if endpoint.replica == 0:
            torch.save(state, content)
        for note in filter(None, endpoint.gather_notes(content.getvalue())):
            for name, tensor in torch.load(io.BytesIO(note), weights_only=True).items():
                state.setdefault(name, tensor)
    return {name: tensor.clone() for name, tensor in state.items()}


def gather_output(output: Any, endpoint: Endpoint) -> Any:
    """Return on every rank, on the CPU, the output of the rank of its replica that has one; all ranks call it."""
    content = io.BytesIO()
    if output is not None:
        torch.save(map_tensors(output, lambda tensor: tensor.detach().cpu()), content)
    notes = endpoint.gather_notes(content.getvalue())[endpoint.replica :: endpoint.replicas]
    # The ranks of one job trust each other; what a model returns may be of any class.
    return next((torch.load(io.BytesIO(note), weights_only=False) for note in notes if note), None)


def load_full(modules: Sequence[nn.Module], graph: Graph, state: Mapping[str, Tensor]) -> None:
    """Load into stages their part of a whole model's ``state``.

    Raises
    ------
    MismatchError
        If a name is missing or a shape differs; nothing has been loaded then.
    """
    names = {alias: p for p in graph.parameters for alias in (p.name, *p.aliases)}
    parts = []
    for module in modules:
        part = {}
        for name, tensor in module.state_dict().items():
            candidates = (name, names[name].name, *names[name].aliases) if name in names else (name,)
            found = next((state[candidate] for candidate in candidates if candidate in state), None)
            if found is None:
                raise MismatchError(f"the state has no {name}, which the model needs: load a state of this model.")
            if isinstance(tensor, Tensor) and not isinstance(found, Tensor):
                raise MismatchError(f"{name} is no tensor in the state: load a state of this model.")
            if isinstance(tensor, Tensor) and found.shape != tensor.shape:
                raise MismatchError(
                    f"{name} has shape {tuple(found.shape)} in the state and {tuple(tensor.shape)} in the model: "
                    "load a state of this model."
                )
            part[name] = like(tensor, found) if isinstance(tensor, Tensor) else found
        parts.append(part)
    for module, part in zip(modules, parts, strict=True):
        module.load_state_dict(part)
