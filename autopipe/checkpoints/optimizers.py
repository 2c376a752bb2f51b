"""The state of optimizers by the names of their parameters, so that any other split of the model can take it up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.errors import InputError, MismatchError

_BY_POSITION = ("params", "param_names")


@dataclass(frozen=True, kw_only=True)
class NamedState:
    """What optimizers know, by the names of parameters.

    Attributes
    ----------
    tensors : mapping
        "name.key" -> tensor, such as ``head.weight.exp_avg``.
    rest : mapping
        Name -> key -> what is no tensor.
    groups : sequence
        Of each parameter group, over all optimizers: ``{"optimizer": class name, "names": [...], "options": {...}}``.
    """

    tensors: dict[str, Tensor]
    rest: dict[str, dict[str, Any]]
    groups: list[dict[str, Any]]


def named_state(optimizers: Sequence[torch.optim.Optimizer], names: Mapping[nn.Parameter, str]) -> NamedState:
    """Return the state of ``optimizers`` of one process.

    Raises
    ------
    InputError
        If an optimizer holds a parameter that has no name.
    """
    tensors: dict[str, Tensor] = {}
    rest: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for optimizer in optimizers:
        state = optimizer.state_dict()
        rows = _names(optimizer, names)
        flat = [name for row in rows for name in row]
        for position, entries in state["state"].items():
            for key, value in entries.items():
                if isinstance(value, Tensor) and "." not in str(key):
                    tensors[f"{flat[position]}.{key}"] = value
                else:
                    rest.setdefault(flat[position], {})[key] = value
        for row, group in zip(rows, state["param_groups"], strict=True):
            options = {key: value for key, value in group.items() if key not in _BY_POSITION}
            groups.append({"optimizer": type(optimizer).__name__, "names": row, "options": options})
    return NamedState(tensors=tensors, rest=rest, groups=groups)


def merged_groups(processes: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the groups of all processes as those of one optimizer over the whole model.

    Raises
    ------
    InputError
        If processes have different groups.
    """
    having = [groups for groups in processes if groups]
    merged: list[dict[str, Any]] = []
    for groups in having:
        if len(groups) != len(having[0]):
            raise InputError(
                f"one rank's optimizer has {len(groups)} parameter groups and another's {len(having[0])}: make the "
                "same groups on every rank, even if some have no parameters there."
            )
        for index, group in enumerate(groups):
            if index == len(merged):
                merged.append({**group, "names": list(group["names"])})
                continue
            whole = merged[index]
            for key in {*group["options"], *whole["options"]}:
                if not _same(group["options"].get(key), whole["options"].get(key)):
                    raise InputError(
                        f"parameter group {index} has another {key} on one rank than on another "
                        f"({group['options'].get(key)} against {whole['options'].get(key)}): give all ranks the same."
                    )
            whole["names"] += [name for name in group["names"] if name not in whole["names"]]
    return merged


def load_named_state(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[nn.Parameter, str], saved: NamedState
) -> None:
    """Give ``optimizers`` the saved state of the parameters that they hold.

    Raises
    ------
    MismatchError
        If they are of another class, or their groups hold other parameters; nothing has been loaded then.
    """
    states = []
    entries: dict[str, dict[str, Any]] = {}
    for key, tensor in saved.tensors.items():
        name, _, short = key.rpartition(".")
        entries.setdefault(name, {})[short] = tensor
    for name, more in saved.rest.items():
        entries.setdefault(name, {}).update(more)
    home = {name: group for group in saved.groups for name in group["names"]}
    first = 0
    for optimizer in optimizers:
        state = optimizer.state_dict()
        rows = _names(optimizer, names)
        flat = [name for row in rows for name in row]
        for offset, (row, group) in enumerate(zip(rows, state["param_groups"], strict=True)):
            source = _source(row, home, saved.groups, first + offset, type(optimizer).__name__)
            group.update({key: value for key, value in source["options"].items() if key not in _BY_POSITION})
        state["state"] = {i: entries[name] for i, name in enumerate(flat) if name in entries}
        states.append(state)
        first += len(rows)
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)


def _source(
    row: list[str], home: Mapping[str, dict[str, Any]], groups: list[dict[str, Any]], index: int, kind: str
) -> dict[str, Any]:
    """Return the saved group of a group's parameters; of one without parameters here, the group in its place."""
    unknown = [name for name in row if name not in home]
    if unknown:
        raise MismatchError(
            f"the checkpoint has no optimizer state for {unknown[0]} (and {len(unknown) - 1} more): give the optimizer "
            "the parameters that it had when it was saved, or load without optimizer=."
        )
    found = [home[row[0]]] if row else groups[index : index + 1]
    if not found or any(home[name] is not found[0] for name in row):
        raise MismatchError(
            f"parameter group {index} mixes parameters of several saved groups: make the groups as they were when "
            "the checkpoint was saved."
        )
    if found[0]["optimizer"] != kind:
        raise MismatchError(
            f"the checkpoint was saved with the optimizer {found[0]['optimizer']} and this is {kind}: make the same "
            "one, or load without optimizer=."
        )
    return found[0]


def _names(optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str]) -> list[list[str]]:
    rows = []
    for group in optimizer.param_groups:
        missing = [tuple(parameter.shape) for parameter in group["params"] if parameter not in names]
        if missing:
            raise InputError(
                f"the optimizer holds a parameter of shape {missing[0]} that is not one of those trained: "
                "make it from pipe.parameters() or pipe.named_parameters()."
            )
        rows.append([names[parameter] for parameter in group["params"]])
    return rows


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
