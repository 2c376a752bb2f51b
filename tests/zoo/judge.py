"""A captured model is judged against the model itself: outputs, every gradient and buffer, at other sizes and modes."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autopipe.errors import AutopipeError
from autopipe.recorder import record
from tests.zoo.case import Case, parts, tensors

BATCH, OTHER_BATCH = 2, 4
EQUAL, CLOSE, REFUSED, FAILED, WRONG = "equal", "close", "refused", "failed", "wrong"
RIGHT = (EQUAL, CLOSE)


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What some way of capturing made of a model: what to call, its parameters by original name, its mode.

    Where it does not keep the containers that the model returns, only the tensors in them are compared.
    """

    call: Callable[..., Any]
    parameters: Mapping[str, Tensor]
    train: Callable[[bool], Any]
    keeps_containers: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a captured model compares: at the recorded batch size, in the other mode and back, at another batch size.

    Each is one of ``equal`` (bit for bit), ``close`` (rtol 1e-4), ``refused`` (with a sentence of autopipe's),
    ``failed`` (any other error) and ``wrong`` (a silent difference); ``detail`` says what went wrong first.
    """

    capture: str
    mode: str
    batch: str
    names: bool
    detail: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the model was captured with outputs and all gradients equal."""
        return self.capture in RIGHT

    @property
    def is_sound(self) -> bool:
        """Whether nothing is silently wrong: each comparison is right or refused with a sentence."""
        return all(each in (*RIGHT, REFUSED) for each in (self.capture, self.mode, self.batch)) and self.names


def by_autopipe(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Capture a model with the project's recorder."""
    recording = record(model, args, kwargs)
    named = dict(model.named_parameters(remove_duplicate=False))
    listed = {name for each in recording.graph.parameters for name in (each.name, *each.aliases)}
    return Captured(
        call=recording.module,
        parameters={name: tensor for name, tensor in named.items() if name in listed},
        train=recording.module.train,
        notes={
            "layers": len(recording.graph.layers),
            "nodes": len(recording.graph.nodes),
            "leaves": len(recording.demoted),
            "batch_is_free": recording.graph.batch_is_free,
        },
    )


def judge(case: Case, capture: Callable[..., Captured] = by_autopipe) -> Verdict:
    """Return how ``capture`` does on a case."""
    # Built twice, not copied: a copy would lose the hooks of tensors.
    plain, model = (_build(case) for _ in range(2))
    names = [name for name, _ in plain.named_parameters(remove_duplicate=False)]
    args, kwargs = case.draw(BATCH)
    try:
        captured = capture(model, args, kwargs)
    except AutopipeError as error:
        return Verdict(capture=REFUSED, mode=REFUSED, batch=REFUSED, names=True, detail=str(error))
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        return Verdict(capture=FAILED, mode=FAILED, batch=FAILED, names=False, detail=detail)
    trials = [(BATCH, True), (BATCH, False), (BATCH, True), (OTHER_BATCH, True), (OTHER_BATCH, False)]
    found = [_compare(case, plain, names, captured, batch, training) for batch, training in trials]
    missing = sorted(set(names) - captured.parameters.keys())
    details = [detail for _, detail in found if detail] + ([f"no parameter {missing[0]}"] if missing else [])
    return Verdict(
        capture=found[0][0],
        mode=_worst(found[1][0], found[2][0]),
        batch=_worst(found[3][0], found[4][0] if found[1][0] in RIGHT else EQUAL),
        names=not missing,
        detail=details[0] if details else "",
        notes=captured.notes,
    )


def _worst(*statuses: str) -> str:
    return max(statuses, key=(EQUAL, CLOSE, REFUSED, FAILED, WRONG).index)


def _build(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.build().train()


def _compare(
    case: Case, plain: nn.Module, names: Sequence[str], captured: Captured, batch: int, training: bool
) -> tuple[str, str]:
    """Return how the two compare on new data, and what differs first."""
    args, kwargs = case.draw(batch)
    plain.train(training)
    plain.zero_grad()
    wanted = _run(plain, args, kwargs)
    for parameter in captured.parameters.values():
        parameter.grad = None
    try:
        captured.train(training)
        found = _run(captured.call, args, kwargs)
    except AutopipeError as error:
        return REFUSED, str(error)
    except Exception as error:
        return FAILED, f"{type(error).__name__}: {error}"
    grown = dict(plain.named_parameters(remove_duplicate=False))
    if not captured.keeps_containers:
        wanted, found = list(tensors(wanted)), list(tensors(found))
    return _difference(dict(parts(wanted)), dict(parts(found)), {name: grown[name] for name in names}, captured)


def _run(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the output of a forward whose backward has run too."""
    torch.manual_seed(1)
    output = call(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    total = _sum(output)
    if total is not None:
        total.backward()
    return output


def _sum(output: Any) -> Tensor | None:
    """Return a sum of all elements of all outputs, each with its own weight; None where nothing has a gradient."""
    sums = []
    for _, part in parts(output):
        if isinstance(part, Tensor) and part.requires_grad:
            real = torch.view_as_real(part) if part.is_complex() else part
            weights = torch.linspace(-1.0, 2.0, real.numel()).reshape(real.shape)
            sums.append((real.float() * weights).sum())
    return torch.stack(sums).sum() if sums else None


def _difference(
    wanted: dict[str, Any], found: dict[str, Any], parameters: dict[str, Tensor], captured: Captured
) -> tuple[str, str]:
    """Return how outputs and gradients compare, and the first that differs."""
    if wanted.keys() != found.keys():
        return WRONG, f"the outputs are {', '.join(found)} instead of {', '.join(wanted)}"
    statuses = {name: _equal(wanted[name], found[name]) for name in wanted}
    present = {name: parameter for name, parameter in parameters.items() if name in captured.parameters}
    for name, parameter in present.items():
        statuses[f"the gradient of {name}"] = _equal(parameter.grad, captured.parameters[name].grad)
    seen = {id(parameter) for parameter in present.values()}
    for name, parameter in parameters.items():
        if id(parameter) not in seen and parameter.grad is not None:
            statuses[f"the gradient of {name} (gone)"] = WRONG
    worst = _worst(EQUAL, *statuses.values())
    return worst, next((f"{name} differs" for name, status in statuses.items() if status == WRONG), "")


def _equal(wanted: Any, found: Any) -> str:
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        return EQUAL if type(wanted) is type(found) and wanted == found else WRONG
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return WRONG
    if torch.equal(wanted, found):
        return EQUAL
    floor = 1e-5 * max(1.0, float(wanted.detach().abs().max())) if wanted.numel() else 0.0
    is_close = torch.allclose(wanted, found, rtol=1e-4, atol=floor, equal_nan=True)
    return CLOSE if is_close else WRONG
