"""A model on the meta device gets memory and values only for what this process holds."""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.errors import InputError, MismatchError
from autopipe.stages.weights import open_weights

Materialise = Callable[[Mapping[str, torch.device]], None]
Initialise = Callable[[nn.Module], None]


def is_on_meta(model: nn.Module) -> bool:
    """Return whether some parameter or buffer of ``model`` has no memory."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def filling(model: nn.Module, *, weights: str | Path | None, initialise: Initialise | None) -> Materialise | None:
    """Return what a process does to the tensors that it holds before it is built; None if that is nothing."""
    if weights is None and not is_on_meta(model):
        return None

    def fill(wanted: Mapping[str, torch.device]) -> None:
        if weights is not None:
            load_weights(model, wanted, weights)
        draw_weights(model, wanted, initialise=initialise)

    return fill


def load_weights(model: nn.Module, wanted: Mapping[str, torch.device], path: str | Path) -> None:
    """Give the tensors ``wanted`` their values of a checkpoint, by any of their names.

    Raises
    ------
    MismatchError
        If one is missing there or has another shape; the model is as before then.
    DocumentError
        If the file cannot be used.
    """
    present, read = open_weights(path)
    names = _names(model)
    found: list[tuple[Tensor, Tensor, torch.device]] = []
    for name, device in wanted.items():
        tensor, aliases = names[name]
        home = next((alias for alias in aliases if alias in present), None)
        if home is None:
            if _is_saved(model, name):
                raise MismatchError(f"{path} has no {name}, which the model needs: pass the weights of this model.")
            continue
        value = read(home)
        if value.shape != tensor.shape:
            raise MismatchError(
                f"{name} has shape {tuple(value.shape)} in {path} and {tuple(tensor.shape)} in the model: pass the "
                "weights of this model."
            )
        found.append((tensor, value, device))
    _let_go_of_weights(model)
    for tensor, value, device in found:
        if tensor.is_meta:
            _give_memory(tensor, device)
        with torch.no_grad():
            tensor.copy_(value)


def draw_weights(model: nn.Module, wanted: Mapping[str, torch.device], *, initialise: Initialise | None = None) -> None:
    """Give the tensors ``wanted`` the values that building the whole model here would give them.

    Every module's ``reset_parameters`` is called, those of its children first, as constructors do; then
    ``initialise`` for every module in the same order, as ``model.apply(initialise)`` does. What is not wanted is
    drawn into memory that is let go of at once, so that the numbers that follow are the same; this never holds
    more than one module's own tensors. A tied parameter keeps what its first module drew.

    Raises
    ------
    InputError
        If something wanted is written by no module.
    """
    names = _names(model)
    here = {id(names[name][0]): device for name, device in wanted.items() if names[name][0].is_meta}
    if not here:
        return
    _let_go_of_weights(model)
    settled: set[int] = set()
    for module in _children_first(model):
        if hasattr(module, "reset_parameters") or hasattr(module, "_reset_parameters"):
            _call(module, _reset, here, settled)
            settled |= {id(tensor) for _, _, tensor in _own(module)}
    if initialise is not None:
        for module in _children_first(model):
            _call(module, initialise, here, set())
    empty = [name for name in wanted if id(names[name][0]) in here and names[name][0]._version == 0]
    if empty:
        raise InputError(
            f"{', '.join(empty[:3])}{' and more' if len(empty) > 3 else ''} on the meta device got no values: no "
            "module that owns them has a reset_parameters that writes them. Pass initialise=, a function that does "
            "for a module, pass weights=, or build them with memory."
        )


def _call(module: nn.Module, function: Initialise, here: Mapping[int, torch.device], settled: Collection[int]) -> None:
    """Call ``function`` with memory behind all that ``module`` itself owns; keep what is ``here`` and not settled."""
    own = list(_own(module))
    if not any(tensor.is_meta or id(tensor) in here for _, _, tensor in own):
        return
    device = next((here[id(tensor)] for _, _, tensor in own if id(tensor) in here), next(iter(here.values())))
    lent = [(table, name, tensor) for table, name, tensor in own if id(tensor) not in here or id(tensor) in settled]
    for _, _, tensor in own:
        if tensor.is_meta and id(tensor) in here:
            _give_memory(tensor, here[id(tensor)])
    for table, name, tensor in lent:
        table[name] = _with_memory(tensor, device)
    try:
        function(module)
    finally:
        for table, name, tensor in lent:
            table[name] = tensor


def _reset(module: Any) -> None:
    # nn.MultiheadAttention and nn.Transformer hide theirs.
    (module.reset_parameters if hasattr(module, "reset_parameters") else module._reset_parameters)()


def _own(module: nn.Module) -> Iterator[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Yield where each parameter and buffer of ``module`` itself stands, its name there, and it."""
    tables: tuple[Any, Any] = (module._parameters, module._buffers)
    for table in tables:
        for name, tensor in table.items():
            if tensor is not None:
                yield table, name, tensor


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    """Yield all modules in the order of ``apply``, each once."""
    seen: dict[int, nn.Module] = {}

    def visit(part: nn.Module) -> None:
        if id(part) not in seen:
            for child in part.children():
                visit(child)
            seen.setdefault(id(part), part)

    visit(module)
    yield from seen.values()


def _let_go_of_weights(model: nn.Module) -> None:
    """Drop what else holds the model's tensors: torch puts memory behind a tensor only where nothing does.

    That are autograd graphs of recording, in cycles that were not collected yet, and the weak references of
    recurrent modules, which make them anew.
    """
    gc.collect()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module._flat_weight_refs = []


def _give_memory(tensor: Tensor, device: torch.device) -> None:
    """Put memory behind a tensor on the meta device; whoever holds the tensor has it then."""
    torch.utils.swap_tensors(tensor, _with_memory(tensor, device))


def _with_memory(tensor: Tensor, device: torch.device) -> Tensor:
    empty = torch.empty_like(tensor, device=device, requires_grad=False)
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _names(model: nn.Module) -> dict[str, tuple[Tensor, tuple[str, ...]]]:
    """Return, for each name of a parameter or buffer, it and all its names."""
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    by_identity: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        by_identity.setdefault(id(tensor), []).append(name)
    return {name: (tensor, tuple(by_identity[id(tensor)])) for name, tensor in tensors.items()}


def _is_saved(model: nn.Module, name: str) -> bool:
    """Return whether a state_dict of ``model`` holds ``name``."""
    path, _, last = name.rpartition(".")
    return last not in model.get_submodule(path)._non_persistent_buffers_set
