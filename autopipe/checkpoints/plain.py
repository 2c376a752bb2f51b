"""A checkpoint of a pipeline is loaded into the plain model, with its optimizer, or turned into one file."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful

from autopipe.checkpoints.optimizers import load_named_state
from autopipe.checkpoints.saved import Saved
from autopipe.documents.arguments import typed
from autopipe.documents.checkpoint import Checkpoint
from autopipe.errors import DocumentError


@typed
def load_checkpoint(
    folder: str | Path,
    model: nn.Module,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
) -> Checkpoint:
    """Load what a pipeline saved into an ordinary model, in place, and return what was trained and how far.

    Parameters
    ----------
    folder : path
        A checkpoint, or a folder of them, of which the newest is taken.
    model : nn.Module
        Built as the one that was given to `autopipe.pipeline`.
    optimizer, scheduler, scaler : optional
        What is to go on where the pipeline's stopped.

    Raises
    ------
    MismatchError
        If it was saved from another model, or with another optimizer.
    DocumentError
        If there is no checkpoint, it is damaged, or it lacks what is to be loaded.
    """
    saved = Saved(folder)
    for what, given, known in (
        ("optimizer", optimizer, saved.training["groups"]),
        ("scheduler", scheduler, saved.training["scheduler"]),
        ("scaler", scaler, saved.training["scaler"]),
    ):
        if given is not None and not known:
            raise DocumentError(f"{saved.folder} was saved without {what}: load it without {what}=.")
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    saved.check_names(state)
    names = {parameter: name for name, parameter in model.named_parameters()}
    contents = saved.read(state, optimizer_of=names.values() if optimizer is not None else ())
    if optimizer is not None:
        load_named_state((optimizer,), names, contents.optimizer)
    with torch.no_grad():
        for name, value in contents.model.items():
            state[name].copy_(value)
    if scheduler is not None:
        scheduler.load_state_dict(saved.training["scheduler"][0])
    if scaler is not None:
        scaler.load_state_dict(saved.training["scaler"])
    return saved.document


def whole_state(saved: Saved) -> dict[str, Any]:
    """Return a checkpoint as `torch.distributed.checkpoint.state_dict` has it: one whole model, one optimizer, by name.

    ``{"model": {name: tensor}, "optimizer": {"state": {name: {key: value}}, "param_groups": [...]}, "step": ...}``;
    a tied parameter has all its names in ``model``, with the same tensor.
    """
    contents = saved.whole()
    model = dict(contents.model)
    for alias, name in saved.document.aliases.items():
        if name in model:
            model[alias] = model[name]
    states: dict[str, dict[str, Any]] = {}
    for key, tensor in contents.optimizer.tensors.items():
        name, _, short = key.rpartition(".")
        states.setdefault(name, {})[short] = tensor
    for name, entries in contents.optimizer.rest.items():
        states.setdefault(name, {}).update(entries)
    groups = [{**group["options"], "params": group["names"]} for group in contents.optimizer.groups]
    whole: dict[str, Any] = {"model": model, "step": saved.document.step}
    if groups:
        whole["optimizer"] = {"state": states, "param_groups": groups}
    for what in ("scheduler", "scaler"):
        if saved.training[what] is not None:
            whole[what] = saved.training[what]
    return whole
